{{/* The rules of queue.Apply, as routines inside a database server. PostgreSQL and MySQL have
one text. The procedural languages of both differ in how they assign, loop and declare. The dialect
fills that in, with the clock, the locks and the messages. Each step is checked against
queue.Apply on random commands.

Parameters begin with p_ and r_ (results), variables with v_, so that none is
taken for a column. Times are in µs on the server's clock. */}}

{{define "tables"}}
{{.Table true}} {{.P}}sessions (
  id {{.Key 64}} NOT NULL PRIMARY KEY, ends BIGINT NOT NULL, ttl BIGINT NOT NULL, label {{.Key 512}} NOT NULL,
  client {{.Key 64}} NOT NULL{{.Inside "sessions_ends" "ends"}}{{.Inside "sessions_client" "client"}} -- client: a client asks for all its claims at once
){{.TableEnd}};
{{.After "sessions_ends" "sessions" "ends"}}
{{.After "sessions_client" "sessions" "client"}}
{{.Table true}} {{.P}}claims (
  resource {{.Key 512}} NOT NULL, place BIGINT NOT NULL, session {{.Key 64}} NOT NULL, id {{.Key 512}} NOT NULL,
  owner {{.Key 512}} NOT NULL, label {{.Key 512}} NOT NULL, weight BIGINT NOT NULL, token BIGINT NOT NULL, since BIGINT NOT NULL,
  granted BIGINT NOT NULL, -- when it was, 0 while it waits
  kind {{.Key 16}} NOT NULL, capacity BIGINT NOT NULL, barging INT NOT NULL,
  waits INT NOT NULL, -- 1 as long as the token is 0, so that the key finds the holders and the first waiter
  news INT NOT NULL, -- 1: the claim waited, and was granted or has to try, which its client wants to know
  slot BIGINT NOT NULL, -- of the lock of the resource: several locks are taken in this order
  held BIGINT NOT NULL DEFAULT 0, -- of the last holder: the sum that all hold, or 0 if the sum has to be counted
  PRIMARY KEY (resource, waits, place){{.Inside "claims_session" "session, news, slot, id"}}
){{.TableEnd}};
{{.After "claims_session" "claims" "session, news, slot, id"}}
{{.Table false}} {{.P}}values (
  name {{.Key 512}} NOT NULL PRIMARY KEY, version BIGINT NOT NULL, data {{.Blob}} NOT NULL
){{.TableEnd}};
{{end}}

{{/* fits finds the token that a claim gets beside the granted ones: the largest of its
owner's, a new one, or none: 0. And how much its owner holds. A claim that weighs more than
a semaphore that was made smaller fits alone.

Once many hold, the row of the last holder has the sum that all hold: then nobody reads all
of them. The sum is kept only while every holder is its own owner. Then no holder shares a
grant, and the sum follows each grant and each leave. fits also returns the sum to note with
the grant. */}}
{{define "fits"}}
{{.Proc "fits" .Text "p_resource" .Text "p_id" .Text "p_owner" "BIGINT" "p_weight" "BIGINT" "p_capacity" "BIGINT" "p_slot" "BIGINT" "p_now" "BIGINT" "r_token" "BIGINT" "r_own" "BIGINT" "r_held"}}
{{.Vars "BIGINT" "v_all" "BIGINT" "v_last"}}
  {{.Set}} r_own := 0; {{.Set}} r_held := 0;
  SELECT c.place, c.held INTO v_last, r_held FROM {{.P}}claims c
    WHERE c.resource = p_resource AND c.waits = 0 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1;
  {{.Set}} v_all := r_held;
  IF COALESCE(r_held, 0) = 0 OR p_owner <> p_id THEN
    SELECT COALESCE(SUM(h.weight), 0), COALESCE(SUM(CASE WHEN h.owner = p_owner THEN h.weight ELSE 0 END), 0),
        CASE WHEN COUNT(*) >= {{many}} AND MIN(h.alone) = 1 THEN SUM(h.weight) ELSE 0 END INTO v_all, r_own, r_held
      FROM (SELECT c.owner AS owner, MAX(c.weight) AS weight, MIN(CASE WHEN c.owner = c.id THEN 1 ELSE 0 END) AS alone
        FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 GROUP BY c.owner) h;
    IF r_held > 0 THEN
      UPDATE {{.P}}claims SET held = r_held WHERE resource = p_resource AND waits = 0 AND place = v_last AND held <> r_held;
    END IF;
  END IF;
  IF r_own >= p_weight THEN
    {{.Set}} r_token := (SELECT MAX(c.token) FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 AND c.owner = p_owner);
  ELSEIF v_all - r_own + LEAST(p_weight, p_capacity) <= p_capacity THEN
    {{.Mint "r_token" "p_slot" "p_now"}}
  ELSE
    {{.Set}} r_token := 0;
  END IF;
  {{.Set}} r_held := CASE WHEN r_token > 0 AND r_held > 0 AND p_owner = p_id THEN r_held + p_weight ELSE 0 END;
{{.End}}
{{end}}

{{/* advance grants the claims that fit, in order of arrival, and removes the dead among them.
Of a barging resource advance tells the first waiter to try, unless that waiter asks. */}}
{{define "advance"}}
{{.Proc "advance" .Text "p_resource" .Text "p_asking" "BIGINT" "p_slot" "BIGINT" "p_now"}}
{{.Vars "BIGINT" "v_place" "BIGINT" "v_weight" "BIGINT" "v_capacity" "BIGINT" "v_fit" "BIGINT" "v_own" "BIGINT" "v_held" "BIGINT" "v_barging" "BIGINT" "v_ends" .Text "v_id" .Text "v_session" .Text "v_owner"}}
  {{.Set}} v_fit := 1; {{.Set}} v_own := 0; {{.Set}} v_held := 0;
  WHILE v_fit <> 0 {{.Do}}
    {{.Set}} v_fit := 0; {{.Set}} v_place := NULL;
    SELECT c.place, c.id, c.session, c.owner, c.weight, c.capacity, c.barging
      INTO v_place, v_id, v_session, v_owner, v_weight, v_capacity, v_barging
      FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource, c.waits, c.place LIMIT 1;
    {{.Set}} v_ends := COALESCE((SELECT s.ends FROM {{.P}}sessions s WHERE s.id = v_session), 0);
    IF v_place IS NOT NULL AND v_ends <= p_now THEN
      DELETE FROM {{.P}}claims WHERE session = v_session AND news IN (0, 1) AND slot = p_slot AND CONCAT(resource) = p_resource AND waits = 1;
      {{.Set}} v_fit := 1;
    ELSEIF v_place IS NOT NULL THEN
      CALL {{.P}}fits(p_resource, v_id, v_owner, v_weight, v_capacity, p_slot, p_now, v_fit, v_own, v_held);
      IF v_fit <> 0 AND v_barging = 1 THEN
        IF v_id <> p_asking THEN
          UPDATE {{.P}}claims SET news = 1 WHERE resource = p_resource AND waits = 1 AND place = v_place AND news = 0;
          {{.Tell "v_session" "v_id" "0" "0"}}
        END IF;
        {{.Set}} v_fit := 0;
      ELSEIF v_fit <> 0 THEN
        UPDATE {{.P}}claims SET token = v_fit, granted = p_now, waits = 0, news = 1, held = v_held WHERE resource = p_resource AND waits = 1 AND place = v_place;
        {{.Tell "v_session" "v_id" "v_fit" "0"}}
        IF v_weight = v_capacity AND v_owner = v_id THEN -- nothing fits beside it, unless the next names its id as owner; that one may be behind the dead
          {{.Set}} v_fit := COALESCE((SELECT CASE WHEN c.owner = v_id OR COALESCE(s.ends, 0) <= p_now THEN 1 ELSE 0 END FROM {{.P}}claims c
            LEFT JOIN {{.P}}sessions s ON s.id = c.session WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource, c.waits, c.place LIMIT 1), 0);
        END IF;
      END IF;
    END IF;
  END {{.Loop}};
{{.End}}
{{end}}

{{/* used sets v_count to 1 where the resource is in use, and else to 0, and finds out as what. */}}
{{define "used"}}{{.Set}} v_count := 0;
      SELECT 1, c.kind, c.capacity, c.barging INTO v_count, v_kind, v_capacity, v_barging FROM {{.P}}claims c WHERE c.resource = p_resource LIMIT 1;
      {{.Set}} v_count := COALESCE(v_count, 0);{{end}}

{{/* step is one step of a resource. The results are:

- a code
- the token of the claim, or 0
- for how long the claim may wait before it looks again
- the kind in use, if the resource is in use as something else
- how much is left of a restart grace, and how long ago that grace began

However many wait, step looks at the holders and at the first waiter, because no other claim is in
the way. The order of the key finds the first and the last claim. For MIN, and for a join that
MariaDB may turn round, MariaDB reads the whole line. A plan that was made when few held reads all
holders, because it looks for a session's claims by the key of the resource. CONCAT keeps the plan from that. */}}
{{define "step"}}
{{.Proc "step" .Text "p_op" .Text "p_session" .Text "p_resource" .Text "p_id" .Text "p_owner" .Text "p_label" "BIGINT" "p_weight" .Text "p_kind" "BIGINT" "p_capacity" "BIGINT" "p_barging" "BIGINT" "p_wait" "BIGINT" "r_code" "BIGINT" "r_token" "BIGINT" "r_pause" .Text "r_kind" "BIGINT" "r_capacity" "BIGINT" "r_barging" "BIGINT" "r_grace" "BIGINT" "r_age"}}
{{.Vars "BIGINT" "v_slot" "BIGINT" "v_now" "BIGINT" "v_grace" "BIGINT" "v_since" "BIGINT" "v_next" "BIGINT" "v_ends" "BIGINT" "v_count" "BIGINT" "v_left" "BIGINT" "v_ended" "BIGINT" "v_top" "BIGINT" "v_first" "BIGINT" "v_place" "BIGINT" "v_token" "BIGINT" "v_weight" "BIGINT" "v_sum" "BIGINT" "v_less" "BIGINT" "v_held" "BIGINT" "v_last" "BIGINT" "v_fit" "BIGINT" "v_own" "BIGINT" "v_capacity" "BIGINT" "v_barging" .Text "v_session" .Text "v_owner" .Text "v_kind" .Text "v_dead"}}
  {{.Set}} r_code := 0; {{.Set}} r_token := 0; {{.Set}} r_pause := 0; {{.Set}} r_kind := ''; {{.Set}} r_capacity := 0; {{.Set}} r_barging := 0; {{.Set}} r_grace := 0; {{.Set}} r_age := 0;
  {{.Set}} v_fit := 0; {{.Set}} v_own := 0; {{.Set}} v_left := 0; {{.Set}} v_first := 0; {{.Set}} v_less := 0; {{.Set}} v_held := 0; {{.Set}} v_count := 1;
  {{.Durable false}}
  {{.Lock "p_resource" "v_slot"}}
  IF p_op = 'enter' THEN -- after the name: a waiter for the session is then in nobody's way
    {{.ShareSession "p_session"}}
  END IF;
  {{.Set}} v_now := {{.Now}};
  {{.Quick}}
  {{.Booted "v_now" "v_grace" "v_since"}}
  SELECT COALESCE(MAX(s.ends), 0) INTO v_ends FROM {{.P}}sessions s WHERE s.id = p_session;
  SELECT CASE WHEN MIN(s.ends) <= v_now THEN 1 ELSE 0 END INTO v_ended FROM {{.P}}sessions s;
  IF p_op = 'enter' AND v_ends <= v_now THEN
    {{.Set}} r_code := 4;
  ELSE
    IF p_op NOT IN ('leave', 'look') THEN {{template "used" .}} END IF;
    IF p_op = 'look' THEN -- of a session that has ended
      DELETE FROM {{.P}}claims WHERE session = p_session AND news IN (0, 1) AND slot = v_slot AND CONCAT(resource) = p_resource;
      {{.Set}} v_left := 1; {{.Set}} v_less := {{uncounted}};
    ELSEIF v_left = 0 AND v_ends > v_now AND v_count = 1 THEN
      SELECT c.place, c.token, c.weight, c.owner, c.held INTO v_place, v_token, v_weight, v_owner, v_sum FROM {{.P}}claims c
        WHERE c.session = p_session AND c.news IN (0, 1) AND c.slot = v_slot AND c.id = p_id AND CONCAT(c.resource) = p_resource;
    END IF;
    IF p_op = 'leave' AND v_left = 0 AND v_place IS NULL THEN -- it may be of another session
      SELECT c.place, c.token, c.session, c.weight, c.held INTO v_place, v_token, v_session, v_weight, v_sum FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session
        WHERE c.resource = p_resource AND c.id = p_id AND s.ends > v_now;
      {{.Set}} r_code := CASE WHEN v_place IS NULL THEN 2 ELSE 0 END;
      {{.Tell "v_session" "p_id" "0" "CASE WHEN v_token = 0 THEN 0 ELSE 1 END"}}
    END IF;
    IF p_op = 'leave' AND v_left = 0 AND v_place IS NOT NULL THEN
      DELETE FROM {{.P}}claims WHERE resource = p_resource AND waits = CASE WHEN v_token = 0 THEN 1 ELSE 0 END AND place = v_place;
      {{.Set}} v_left := 1; {{.Set}} v_less := CASE WHEN v_token = 0 THEN 0 ELSE v_weight END;
    END IF;
    WHILE v_ended = 1 {{.Do}} -- some session has: remove what it has that is in the way here
      {{.Set}} v_first := COALESCE((SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource, c.waits, c.place LIMIT 1), 0);
      IF COALESCE((SELECT c.held FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1), 0) > 0 THEN
        {{.Set}} v_dead := (SELECT s.id FROM {{.P}}sessions s WHERE s.ends <= v_now AND (SELECT MAX(c.place) FROM {{.P}}claims c
          WHERE c.session = s.id AND c.news IN (0, 1) AND c.slot = v_slot AND CONCAT(c.resource) = p_resource AND c.waits = 0) IS NOT NULL LIMIT 1);
      ELSE
        {{.Set}} v_dead := (SELECT c.session FROM {{.P}}claims c LEFT JOIN {{.P}}sessions s ON s.id = c.session
          WHERE c.resource = p_resource AND c.waits = 0 AND COALESCE(s.ends, 0) <= v_now LIMIT 1);
      END IF;
      IF v_dead IS NULL THEN
        {{.Set}} v_dead := (SELECT c.session FROM {{.P}}claims c LEFT JOIN {{.P}}sessions s ON s.id = c.session
          WHERE c.resource = p_resource AND c.waits = 1 AND c.place = v_first AND COALESCE(s.ends, 0) <= v_now);
      END IF;
      IF v_dead IS NULL THEN
        {{.Set}} v_ended := 0;
      ELSE
        DELETE FROM {{.P}}claims WHERE session = v_dead AND news IN (0, 1) AND slot = v_slot AND CONCAT(resource) = p_resource;
        {{.Set}} v_left := 1; {{.Set}} v_less := {{uncounted}};
      END IF;
    END {{.Loop}};
    IF v_left = 1 THEN {{template "used" .}} END IF;
    IF v_count = 1 AND v_less > 0 THEN
      {{.Set}} v_last := (SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1);
      UPDATE {{.P}}claims SET held = GREATEST(CASE WHEN place < v_place THEN v_sum ELSE held END - v_less, 0)
        WHERE resource = p_resource AND waits = 0 AND place = v_last AND (held > 0 OR v_sum > 0);
    END IF;

    IF p_op = 'resize' THEN
      IF v_count = 0 THEN
        {{.Set}} r_code := 2;
      ELSEIF v_kind <> p_kind THEN
        {{.Set}} r_code := 3; {{.Set}} r_kind := v_kind; {{.Set}} r_capacity := v_capacity; {{.Set}} r_barging := v_barging;
      ELSE
        UPDATE {{.P}}claims SET capacity = p_capacity WHERE resource = p_resource;
      END IF;
    END IF;

    -- Each claim that could be granted has been, unless somebody has left or died, or a grace
    -- has ended. A waiter that looks makes good what the store has lost.
    IF v_count = 1 AND (v_left = 1 OR p_op IN ('resize', 'poll') OR v_grace > 0) AND v_grace <= v_now THEN
      CALL {{.P}}advance(p_resource, CASE WHEN p_op = 'poll' THEN p_id ELSE '' END, v_slot, v_now);
      IF p_op IN ('enter', 'poll') THEN
        {{.Set}} v_token := (SELECT c.token FROM {{.P}}claims c
          WHERE c.session = p_session AND c.news IN (0, 1) AND c.slot = v_slot AND c.id = p_id AND CONCAT(c.resource) = p_resource);
      END IF;
    END IF;

    IF p_op = 'enter' AND v_place IS NULL THEN
      IF v_count > 0 THEN {{.Set}} v_first := COALESCE((SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource, c.waits, c.place LIMIT 1), 0); END IF;
      IF v_count > 0 AND (v_kind <> p_kind OR v_capacity <> p_capacity OR v_barging <> p_barging) THEN
        {{.Set}} r_code := 3; {{.Set}} r_kind := v_kind; {{.Set}} r_capacity := v_capacity; {{.Set}} r_barging := v_barging;
      ELSE
        IF v_grace > v_now THEN -- nothing new is given out, but an owner shares what it holds
          SELECT COALESCE(MAX(c.weight), 0), COALESCE(MAX(c.token), 0) INTO v_own, v_token FROM {{.P}}claims c
            WHERE c.resource = p_resource AND c.waits = 0 AND c.owner = p_owner;
          {{.Set}} v_fit := CASE WHEN v_own < p_weight THEN 0 ELSE v_token END;
        ELSEIF v_count = 0 THEN
          {{.Mint "v_fit" "v_slot" "v_now"}}
        ELSEIF v_first = 0 OR p_barging = 1 OR p_owner <> p_id THEN
          CALL {{.P}}fits(p_resource, p_id, p_owner, p_weight, p_capacity, v_slot, v_now, v_fit, v_own, v_held);
          {{.Set}} v_fit := CASE WHEN v_own < p_weight AND p_barging = 0 AND v_first > 0 THEN 0 ELSE v_fit END; -- an upgrade passes nobody either
        END IF;
        IF v_fit = 0 AND (v_own > 0 OR p_wait = 0) THEN
          {{.Set}} r_code := CASE WHEN v_grace > v_now THEN 5 ELSE 1 END;
        ELSE
          IF v_count > 0 THEN {{.Set}} v_top := GREATEST(COALESCE((SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1), 0),
            COALESCE((SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1), 0)); END IF;
          {{.Set}} v_place := COALESCE(v_top, 0) + 1; {{.Set}} r_token := v_fit;
          INSERT INTO {{.P}}claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot, held)
            VALUES (p_resource, v_place, p_session, p_id, p_owner, p_label, p_weight, v_fit, v_now, CASE WHEN v_fit = 0 THEN 0 ELSE v_now END,
              p_kind, p_capacity, p_barging, CASE WHEN v_fit = 0 THEN 1 ELSE 0 END, 0, v_slot, v_held);
        END IF;
      END IF;
    ELSEIF p_op IN ('enter', 'poll') THEN
      IF v_place IS NULL OR v_token IS NULL THEN
        {{.Set}} r_code := 2;
      ELSE
        IF v_barging = 1 AND v_token = 0 AND v_grace <= v_now THEN
          CALL {{.P}}fits(p_resource, p_id, v_owner, v_weight, v_capacity, v_slot, v_now, v_fit, v_own, v_held);
          UPDATE {{.P}}claims SET token = v_fit, granted = CASE WHEN v_fit = 0 THEN 0 ELSE v_now END, waits = CASE WHEN v_fit = 0 THEN 1 ELSE 0 END, news = 0
            WHERE resource = p_resource AND waits = 1 AND place = v_place;
          {{.Set}} v_token := v_fit;
          IF v_fit <> 0 THEN
            {{.Set}} v_last := (SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 0 ORDER BY c.resource DESC, c.waits DESC, c.place DESC LIMIT 1); -- it may have come later
            UPDATE {{.P}}claims SET held = v_held WHERE resource = p_resource AND waits = 0 AND place = v_last;
            CALL {{.P}}advance(p_resource, p_id, v_slot, v_now);
          END IF;
        END IF;
        {{.Set}} r_token := v_token;
        IF p_op = 'enter' AND p_wait = 0 AND v_token = 0 THEN
          {{.Set}} r_code := CASE WHEN v_grace > v_now THEN 5 ELSE 1 END;
          DELETE FROM {{.P}}claims WHERE resource = p_resource AND waits = 1 AND place = v_place;
          IF v_grace <= v_now THEN
            CALL {{.P}}advance(p_resource, '', v_slot, v_now);
          END IF;
        END IF;
      END IF;
    END IF;

    {{.Set}} r_grace := GREATEST(v_grace - v_now, 0); {{.Set}} r_age := CASE WHEN v_grace > v_now THEN v_now - v_since ELSE 0 END;
    -- A waiting claim looks by itself when the first session that blocks it can end.
    IF r_code = 0 AND r_token = 0 AND p_op IN ('enter', 'poll') THEN
      {{.Set}} v_next := (SELECT MIN(s.ends) FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session WHERE c.resource = p_resource AND c.waits = 0);
      {{.Set}} v_first := (SELECT c.place FROM {{.P}}claims c WHERE c.resource = p_resource AND c.waits = 1 ORDER BY c.resource, c.waits, c.place LIMIT 1);
      {{.Set}} v_ends := (SELECT s.ends FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session
        WHERE c.resource = p_resource AND c.waits = 1 AND c.place = v_first AND c.place < v_place);
      {{.Set}} v_next := LEAST(COALESCE(v_next, v_ends), COALESCE(v_ends, v_next));
      {{.Set}} r_pause := CASE WHEN v_grace > v_now THEN LEAST(v_grace, COALESCE(v_next, v_grace)) - v_now ELSE COALESCE(v_next - v_now, 0) END;
    END IF;
  END IF;
{{.End}}
{{end}}

{{/* finish ends a session, or only a session that has ended already, and hands on its locks. One
call does some 50 resources, because locks are memory of the server. finish returns whether
there is more, and another session that has ended.

A session is marked as ended while no Enter of it is under way, so none comes after. Only the
next call hands on, because a routine that keeps Enters away must wait for nobody. The names are
taken in the order of their slots, so that two ends do not wait for one another. SELECT INTO finds
the next name, because MariaDB locks the rows that a subquery of SET reads. The step at that name
may wait for these rows. */}}
{{define "finish"}}
{{.Proc "finish" .Text "p_session" "BIGINT" "p_force" "BIGINT" "r_more" .Text "r_dead"}}
{{.Vars "BIGINT" "v_now" "BIGINT" "v_ends" "BIGINT" "v_left" .Text "v_resource" "BIGINT" "v_code" "BIGINT" "v_token" "BIGINT" "v_pause" .Text "v_kind" "BIGINT" "v_capacity" "BIGINT" "v_barging" "BIGINT" "v_grace" "BIGINT" "v_age"}}
  {{.Set}} r_more := 0; {{.Set}} r_dead := '';
  {{.Durable false}}
  {{.Alone "p_force"}}
  {{.Set}} v_now := {{.Now}};
  {{.Set}} v_ends := (SELECT s.ends FROM {{.P}}sessions s WHERE s.id = p_session);
  IF v_ends <> -1 THEN
    {{.OwnSession "p_session"}}
    {{.Set}} v_now := {{.Now}};
    {{.Set}} v_ends := (SELECT s.ends FROM {{.P}}sessions s WHERE s.id = p_session);
    IF p_force = 1 OR v_ends <= v_now THEN
      UPDATE {{.P}}sessions SET ends = -1 WHERE id = p_session AND (p_force = 1 OR ends <= v_now); -- a renewal may have come before
      {{.Set}} r_more := CASE WHEN EXISTS (SELECT 1 FROM {{.P}}sessions s JOIN {{.P}}claims c ON c.session = s.id WHERE s.id = p_session AND s.ends = -1) THEN 1 ELSE 0 END;
      DELETE FROM {{.P}}sessions WHERE id = p_session AND ends = -1 AND r_more = 0;
    END IF;
  ELSEIF v_ends = -1 THEN
    {{.Set}} v_left := 50;
    WHILE v_left > 0 {{.Do}}
      {{.Set}} v_resource := NULL;
      SELECT f.resource INTO v_resource FROM (
        (SELECT c.resource, c.slot FROM {{.P}}claims c WHERE c.session = p_session AND c.news = 0 ORDER BY c.session, c.news, c.slot, c.id LIMIT 1) UNION ALL
        (SELECT c.resource, c.slot FROM {{.P}}claims c WHERE c.session = p_session AND c.news = 1 ORDER BY c.session, c.news, c.slot, c.id LIMIT 1)) f ORDER BY f.slot LIMIT 1;
      IF v_resource IS NULL THEN
        {{.Set}} v_left := -1;
        DELETE FROM {{.P}}sessions WHERE id = p_session;
      ELSE
        {{.Set}} v_left := v_left - 1;
        {{.CallStep "'look'" "p_session" "v_resource" "''" "''" "''" "0" "''" "0" "0" "0" "v_code" "v_token" "v_pause" "v_kind" "v_capacity" "v_barging" "v_grace" "v_age"}}
      END IF;
    END {{.Loop}};
    {{.Set}} r_more := CASE WHEN v_left = 0 THEN 1 ELSE 0 END;
  END IF;
  {{.Set}} r_dead := COALESCE((SELECT s.id FROM {{.P}}sessions s WHERE s.ends <= v_now AND s.id <> p_session ORDER BY s.ends LIMIT 1), '');
{{.End}}
{{end}}

{{/* start also says which format of pawl these routines are of. */}}
{{define "start"}}
{{.Proc "start" .Text "p_session" "BIGINT" "p_ttl" "BIGINT" "p_belief" .Text "p_label" .Text "p_client" .Text "p_channel" .Text "r_format"}}
{{.Vars "BIGINT" "v_now" "BIGINT" "v_grace" "BIGINT" "v_since"}}
  {{.Set}} r_format := '{{format}}';
  {{.Durable true}} -- the longest belief is kept, whatever the tables are
  {{.Set}} v_now := {{.Now}};
  {{.Boot "v_now" "v_grace" "v_since" "p_belief"}}
  INSERT INTO {{.P}}sessions (id, ends, ttl, label, client) VALUES (p_session, v_now + p_ttl, p_ttl, p_label, p_client);
  {{.Listens "p_session" "p_channel"}}
{{.End}}
{{end}}

{{/* put writes a value that is at p_version. put returns the version that was found, and the version
that was written. 0 stands for none. */}}
{{define "put"}}
{{.Proc "put" .Text "p_name" "BIGINT" "p_version" "BIGINT" "p_delete" .Blob "p_data" "BIGINT" "r_found" "BIGINT" "r_written"}}
{{.Vars "BIGINT" "v_slot" "BIGINT" "v_now" "BIGINT" "v_grace" "BIGINT" "v_since"}}
  {{.Durable true}}
  {{.Lock "p_name" "v_slot"}}
  {{.Set}} v_now := {{.Now}};
  {{.Booted "v_now" "v_grace" "v_since"}}
  {{.Set}} r_written := 0;
  {{.Set}} r_found := COALESCE((SELECT v.version FROM {{.P}}values v WHERE v.name = p_name), 0);
  IF r_found = p_version THEN
    DELETE FROM {{.P}}values WHERE name = p_name;
    IF p_delete = 0 THEN
      {{.Mint "r_written" "v_slot" "v_now"}}
      INSERT INTO {{.P}}values (name, version, data) VALUES (p_name, r_written, p_data);
    END IF;
  END IF;
{{.End}}
{{end}}

{{/* renew returns whether the session lives, a session that has ended, and the claims that the session holds. */}}
{{define "renew"}}
{{.Rows "renew" .Text "p_session" "BIGINT" "alive" .Text "dead" .Text "resource" .Text "held"}}
{{.Vars "BIGINT" "v_now" "BIGINT" "v_alive" .Text "v_dead"}}
  {{.Durable false}}
  {{.Writable}}
  {{.Set}} v_now := {{.Now}};
  UPDATE {{.P}}sessions SET ends = v_now + ttl WHERE id = p_session AND ends > v_now;
  {{.Set}} v_alive := (SELECT COUNT(*) FROM {{.P}}sessions s WHERE s.id = p_session AND s.ends > v_now);
  {{.Set}} v_dead := COALESCE((SELECT s.id FROM {{.P}}sessions s WHERE s.ends <= v_now ORDER BY s.ends LIMIT 1), '');
  {{.Return}} SELECT v_alive, v_dead, c.resource, c.id FROM (SELECT 1 AS one) o LEFT JOIN {{.P}}claims c ON c.session = p_session AND c.waits = 0;
{{.End}}
{{end}}

{{/* The rest is asked as it is. */}}
{{define "list"}}SELECT DISTINCT c.resource FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session
  WHERE c.resource >= {{.Arg 1}} AND c.resource <= {{.Arg 2}} AND s.ends > {{.Now}}{{end}}

{{define "values"}}SELECT v.name FROM {{.P}}values v WHERE v.name >= {{.Arg 1}} AND v.name <= {{.Arg 2}}{{end}}

{{/* show has one row without a claim where there is none, because that row tells of the grace. Since is 0 until a client has begun the grace. */}}
{{define "show"}}SELECT o.grace, o.since, COALESCE(c.session, ''), COALESCE(c.id, ''), COALESCE(c.owner, ''), COALESCE(c.label, ''), COALESCE(c.weight, 0),
    COALESCE(c.token, 0), COALESCE(GREATEST(o.now - c.since, 0), 0), COALESCE(GREATEST(o.now - c.granted, 0), 0), COALESCE(c.ends - o.now, 0),
    COALESCE(c.kind, ''), COALESCE(c.capacity, 0), COALESCE(c.barging, 0)
  FROM (SELECT t.now, {{.Grace}} - t.now AS grace, COALESCE(t.now - NULLIF({{.Since}}, 0), -1) AS since FROM (SELECT {{.Now}} AS now) t) o
    LEFT JOIN (SELECT x.*, s.ends FROM {{.P}}claims x JOIN {{.P}}sessions s ON s.id = x.session WHERE x.resource = {{.Arg 1}}) c ON c.ends > o.now
  ORDER BY c.waits, c.place{{end}}

{{define "get"}}SELECT v.data, v.version FROM {{.P}}values v WHERE v.name = {{.Arg 1}}{{end}}

{{/* news are the news of a client about its claims that waited or wait. A grant older
than a TTL is none: the client has asked for all its claims since then. */}}
{{define "news"}}SELECT c.id, c.token, c.news FROM {{.P}}sessions s JOIN {{.P}}claims c ON c.session = s.id
  WHERE s.client = {{.Arg 1}} AND s.ends > {{.Now}} AND c.news = 1 AND (c.waits = 1 OR c.granted > {{.Now}} - s.ttl){{end}}

{{/* waiting is the state of all claims of a client that wait or have waited. */}}
{{define "waiting"}}SELECT c.id, c.token, c.news FROM {{.P}}sessions s JOIN {{.P}}claims c ON c.session = s.id
  WHERE s.client = {{.Arg 1}} AND s.ends > {{.Now}} AND (c.news = 1 OR c.waits = 1){{end}}
