{{/* What queue.Apply says, as routines inside a database server. One text for
PostgreSQL and MySQL: their procedural languages differ in how they assign,
loop and declare, and the dialect fills that in, with the clock, the locks and
the messages. Each step is checked against queue.Apply on random commands.

Parameters begin with p_ and r_ (results), variables with v_, so that none is
taken for a column. Times are in µs on the server's clock. */}}

{{define "tables"}}
{{.Table}} {{.P}}sessions (
  id {{.Key 64}} NOT NULL PRIMARY KEY, ends BIGINT NOT NULL, ttl BIGINT NOT NULL, label {{.Key 512}} NOT NULL,
  client {{.Key 64}} NOT NULL{{.Inside "sessions_ends" "ends"}}{{.Inside "sessions_client" "client"}} -- client: who is told of its claims
){{.TableEnd}};
{{.After "sessions_ends" "sessions" "ends"}}
{{.After "sessions_client" "sessions" "client"}}
{{.Table}} {{.P}}claims (
  resource {{.Key 512}} NOT NULL, place BIGINT NOT NULL, session {{.Key 64}} NOT NULL, id {{.Key 512}} NOT NULL,
  owner {{.Key 512}} NOT NULL, label {{.Key 512}} NOT NULL, weight BIGINT NOT NULL, token BIGINT NOT NULL, since BIGINT NOT NULL,
  granted BIGINT NOT NULL, -- 0 while it waits
  kind {{.Key 16}} NOT NULL, capacity BIGINT NOT NULL, barging INT NOT NULL,
  waited INT NOT NULL, -- 0: granted at once, 1: it waits or has waited, 2: it is told to try
  slot BIGINT NOT NULL, -- of the lock of the resource: who takes several takes them in this order
  PRIMARY KEY (resource, place){{.Inside "claims_session" "session, slot"}}
){{.TableEnd}};
{{.After "claims_session" "claims" "session, slot"}}
{{.Logged}} {{.P}}values (
  name {{.Key 512}} NOT NULL PRIMARY KEY, version BIGINT NOT NULL, data {{.Blob}} NOT NULL
){{.TableEnd}};
{{end}}

{{/* fits finds the token that a claim gets beside the granted ones: its owner's,
a new one, or none: 0. And how much its owner holds. One that weighs more than
a semaphore that was made smaller fits alone. */}}
{{define "fits"}}
{{.Proc "fits" .Text "p_resource" .Text "p_owner" "BIGINT" "p_weight" "BIGINT" "p_capacity" "BIGINT" "p_slot" "BIGINT" "p_now" "BIGINT" "r_token" "BIGINT" "r_own"}}
{{.Vars "BIGINT" "v_all"}}
  SELECT COALESCE(SUM(h.weight), 0), COALESCE(SUM(CASE WHEN h.owner = p_owner THEN h.weight ELSE 0 END), 0) INTO v_all, r_own
    FROM (SELECT c.owner AS owner, MAX(c.weight) AS weight FROM {{.P}}claims c
      WHERE c.resource = p_resource AND c.token <> 0 GROUP BY c.owner) h;
  IF r_own >= p_weight THEN
    {{.Set}} r_token := (SELECT c.token FROM {{.P}}claims c WHERE c.resource = p_resource AND c.token <> 0 AND c.owner = p_owner
      ORDER BY c.weight DESC, c.place LIMIT 1);
  ELSEIF v_all - r_own + LEAST(p_weight, p_capacity) <= p_capacity THEN
    {{.Mint "r_token" "p_slot" "p_now"}}
  ELSE
    {{.Set}} r_token := 0;
  END IF;
{{.End}}
{{end}}

{{/* advance grants what fits in order of arrival; of a barging resource it tells
the first that waits to try, unless that one asks. */}}
{{define "advance"}}
{{.Proc "advance" .Text "p_resource" .Text "p_asking" "BIGINT" "p_slot" "BIGINT" "p_now"}}
{{.Vars "BIGINT" "v_place" "BIGINT" "v_weight" "BIGINT" "v_capacity" "BIGINT" "v_fit" "BIGINT" "v_own" "BIGINT" "v_barging" "BIGINT" "v_waited" .Text "v_id" .Text "v_session" .Text "v_owner"}}
  {{.Set}} v_fit := 1; {{.Set}} v_own := 0;
  WHILE v_fit <> 0 {{.Do}}
    {{.Set}} v_fit := 0;
    {{.Set}} v_place := NULL;
    SELECT c.place, c.id, c.session, c.owner, c.weight, c.capacity, c.barging, c.waited
      INTO v_place, v_id, v_session, v_owner, v_weight, v_capacity, v_barging, v_waited
      FROM {{.P}}claims c WHERE c.resource = p_resource AND c.token = 0 ORDER BY c.resource, c.place LIMIT 1;
    IF v_place IS NOT NULL THEN
      CALL {{.P}}fits(p_resource, v_owner, v_weight, v_capacity, p_slot, p_now, v_fit, v_own);
      IF v_fit <> 0 AND v_barging = 1 THEN
        IF v_id <> p_asking THEN
          IF v_waited <> 2 THEN
            UPDATE {{.P}}claims SET waited = 2 WHERE resource = p_resource AND place = v_place;
          END IF;
          {{.Tell "v_session" "v_id" "0" "0"}}
        END IF;
        {{.Set}} v_fit := 0;
      ELSEIF v_fit <> 0 THEN
        UPDATE {{.P}}claims SET token = v_fit, granted = p_now WHERE resource = p_resource AND place = v_place;
        {{.Tell "v_session" "v_id" "v_fit" "0"}}
        IF v_weight = v_capacity AND v_owner = v_id THEN
          {{.Set}} v_fit := 0; -- nothing fits beside it
        END IF;
      END IF;
    END IF;
  END {{.Loop}};
{{.End}}
{{end}}

{{/* step is one step of a resource. It returns a code, the token of the claim or
0, for how long it may wait before it looks again, and as what the resource is
in use if that is something else. */}}
{{define "step"}}
{{.Proc "step" .Text "p_op" .Text "p_session" .Text "p_resource" .Text "p_id" .Text "p_owner" .Text "p_label" "BIGINT" "p_weight" .Text "p_kind" "BIGINT" "p_capacity" "BIGINT" "p_barging" "BIGINT" "p_wait" "BIGINT" "r_code" "BIGINT" "r_token" "BIGINT" "r_pause" .Text "r_kind" "BIGINT" "r_capacity" "BIGINT" "r_barging"}}
{{.Vars "BIGINT" "v_slot" "BIGINT" "v_now" "BIGINT" "v_grace" "BIGINT" "v_next" "BIGINT" "v_ends" "BIGINT" "v_count" "BIGINT" "v_more" "BIGINT" "v_left" "BIGINT" "v_buried" "BIGINT" "v_ended" "BIGINT" "v_waiting" "BIGINT" "v_top" "BIGINT" "v_place" "BIGINT" "v_token" "BIGINT" "v_weight" "BIGINT" "v_fit" "BIGINT" "v_own" "BIGINT" "v_capacity" "BIGINT" "v_barging" .Text "v_session" .Text "v_owner" .Text "v_kind" .Text "v_dead"}}
  {{.Set}} r_code := 0; {{.Set}} r_token := 0; {{.Set}} r_pause := 0; {{.Set}} r_kind := ''; {{.Set}} r_capacity := 0; {{.Set}} r_barging := 0;
  {{.Set}} v_fit := 0; {{.Set}} v_own := 0; {{.Set}} v_left := 0; {{.Set}} v_buried := 0;
  IF p_op = 'enter' THEN
    {{.ShareSession "p_session"}}
  END IF;
  {{.Lock "p_resource" "v_slot"}}
  {{.Set}} v_now := {{.Now}};
  {{.Quick}}
  SELECT COALESCE((SELECT s.ends FROM {{.P}}sessions s WHERE s.id = p_session), 0), {{.Grace}},
      CASE WHEN EXISTS (SELECT 1 FROM {{.P}}claims c WHERE c.resource = p_resource AND (p_op <> 'leave' OR c.id <> p_id)) THEN 1 ELSE 0 END,
      CASE WHEN EXISTS (SELECT 1 FROM {{.P}}sessions s WHERE s.ends <= v_now) THEN 1 ELSE 0 END
    INTO v_ends, v_grace, v_more, v_ended;
  IF p_op = 'enter' AND v_ends <= v_now THEN
    {{.Set}} r_code := 4;
  ELSE
    IF p_op = 'leave' AND v_left = 0 AND v_ends > v_now THEN
      DELETE FROM {{.P}}claims WHERE resource = p_resource AND id = p_id AND session = p_session;
      {{.Count "v_left"}}
    END IF;
    IF p_op = 'leave' AND v_left = 0 THEN
      {{.Set}} v_more := 1; -- it may be of another session, or of one that has ended
    END IF;
    WHILE v_ended = 1 {{.Do}} -- some session has: remove what it may have here
      {{.Set}} v_dead := (SELECT c.session FROM {{.P}}sessions s JOIN {{.P}}claims c ON c.session = s.id
        WHERE s.ends <= v_now AND c.resource = p_resource LIMIT 1);
      IF v_dead IS NULL THEN
        {{.Set}} v_ended := 0;
      ELSE
        DELETE FROM {{.P}}claims WHERE resource = p_resource AND session = v_dead;
        {{.Set}} v_buried := 1;
      END IF;
    END {{.Loop}};
    {{.Set}} v_count := 0; {{.Set}} v_waiting := 0; {{.Set}} v_top := 0;
    IF p_op = 'leave' AND v_left = 1 THEN -- advance finds out who waits
      {{.Set}} v_waiting := v_more;
    ELSEIF v_more = 1 THEN -- most of the time nobody is there
      SELECT COUNT(*), COALESCE(SUM(CASE WHEN c.token = 0 THEN 1 ELSE 0 END), 0), COALESCE(MAX(c.place), 0), MIN(c.kind), MIN(c.capacity), MIN(c.barging),
          MAX(CASE WHEN c.id = p_id THEN c.place END), MAX(CASE WHEN c.id = p_id THEN c.token END), MAX(CASE WHEN c.id = p_id THEN c.weight END),
          MAX(CASE WHEN c.id = p_id THEN c.owner END), MAX(CASE WHEN c.id = p_id THEN c.session END)
        INTO v_count, v_waiting, v_top, v_kind, v_capacity, v_barging, v_place, v_token, v_weight, v_owner, v_session
        FROM {{.P}}claims c WHERE c.resource = p_resource;
    END IF;

    IF p_op = 'leave' AND v_left = 0 THEN
      IF v_place IS NULL THEN
        {{.Set}} r_code := 2;
      ELSE -- it is of another session
        DELETE FROM {{.P}}claims WHERE resource = p_resource AND place = v_place;
        {{.Tell "v_session" "p_id" "0" "CASE WHEN v_token = 0 THEN 0 ELSE 1 END"}}
        IF v_token = 0 THEN
          {{.Set}} v_waiting := v_waiting - 1;
        END IF;
      END IF;
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

    -- Who could be granted has been, unless somebody has left or died, or a grace
    -- has ended.
    IF v_waiting > 0 AND (p_op IN ('leave', 'look', 'resize') OR v_buried = 1 OR v_grace > 0) AND v_grace <= v_now THEN
      IF p_op = 'poll' THEN
        CALL {{.P}}advance(p_resource, p_id, v_slot, v_now);
      ELSE
        CALL {{.P}}advance(p_resource, '', v_slot, v_now);
      END IF;
      IF p_op IN ('enter', 'poll') THEN
        SELECT SUM(CASE WHEN c.token = 0 THEN 1 ELSE 0 END), MAX(CASE WHEN c.id = p_id THEN c.token END) INTO v_waiting, v_token
          FROM {{.P}}claims c WHERE c.resource = p_resource;
      END IF;
    END IF;

    IF p_op = 'enter' AND v_place IS NULL THEN
      IF v_count > 0 AND (v_kind <> p_kind OR v_capacity <> p_capacity OR v_barging <> p_barging) THEN
        {{.Set}} r_code := 3; {{.Set}} r_kind := v_kind; {{.Set}} r_capacity := v_capacity; {{.Set}} r_barging := v_barging;
      ELSE
        IF v_grace > v_now THEN
          {{.Set}} v_fit := 0;
        ELSEIF v_count = 0 THEN
          {{.Mint "v_fit" "v_slot" "v_now"}}
        ELSEIF v_waiting = 0 OR p_barging = 1 OR p_owner <> p_id THEN
          CALL {{.P}}fits(p_resource, p_owner, p_weight, p_capacity, v_slot, v_now, v_fit, v_own);
          IF v_own < p_weight AND p_barging = 0 AND v_waiting > 0 THEN
            {{.Set}} v_fit := 0; -- an upgrade passes nobody either
          END IF;
        END IF;
        IF v_fit = 0 AND (v_own > 0 OR p_wait = 0) THEN
          {{.Set}} r_code := CASE WHEN v_grace > v_now THEN 5 ELSE 1 END;
        ELSE
          {{.Set}} v_place := v_top + 1; {{.Set}} v_barging := p_barging; {{.Set}} r_token := v_fit;
          INSERT INTO {{.P}}claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waited, slot)
            VALUES (p_resource, v_place, p_session, p_id, p_owner, p_label, p_weight, v_fit, v_now, CASE WHEN v_fit = 0 THEN 0 ELSE v_now END, p_kind, p_capacity, p_barging,
              CASE WHEN v_fit = 0 THEN 1 ELSE 0 END, v_slot);
        END IF;
      END IF;
    ELSEIF p_op IN ('enter', 'poll') THEN
      IF v_place IS NULL THEN
        {{.Set}} r_code := 2;
      ELSE
        IF v_barging = 1 AND v_token = 0 AND v_grace <= v_now THEN
          CALL {{.P}}fits(p_resource, v_owner, v_weight, v_capacity, v_slot, v_now, v_fit, v_own);
          UPDATE {{.P}}claims SET token = v_fit, granted = CASE WHEN v_fit = 0 THEN 0 ELSE v_now END, waited = 1 WHERE resource = p_resource AND place = v_place;
          {{.Set}} v_token := v_fit;
          IF v_fit <> 0 THEN
            CALL {{.P}}advance(p_resource, p_id, v_slot, v_now);
          END IF;
        END IF;
        {{.Set}} r_token := v_token;
        IF p_op = 'enter' AND p_wait = 0 AND v_token = 0 THEN
          {{.Set}} r_code := 1;
          DELETE FROM {{.P}}claims WHERE resource = p_resource AND place = v_place;
          IF v_grace <= v_now THEN
            CALL {{.P}}advance(p_resource, '', v_slot, v_now);
          END IF;
        END IF;
      END IF;
    END IF;

    -- Who waits looks by itself when the first session that blocks it can end.
    IF r_code = 0 AND r_token = 0 AND p_op IN ('enter', 'poll') THEN
      {{.Set}} v_next := (SELECT MIN(s.ends) FROM {{.P}}sessions s WHERE s.id IN (SELECT c.session FROM {{.P}}claims c
        WHERE c.resource = p_resource AND c.id <> p_id AND (c.place < v_place OR c.token <> 0 OR v_barging = 1)));
      IF v_grace > v_now THEN
        {{.Set}} v_next := LEAST(v_grace, COALESCE(v_next, v_grace));
      END IF;
      {{.Set}} r_pause := COALESCE(v_next - v_now, 0);
    END IF;
  END IF;
{{.End}}
{{end}}

{{/* finish ends a session, or only one that has ended already, and hands on what
it had: of some 50 resources at a time, for locks are memory of the server. It
returns whether there is more of it, and another session that has ended. No
Enter of the session is under way meanwhile, so none comes after. */}}
{{define "finish"}}
{{.Proc "finish" .Text "p_session" "BIGINT" "p_force" "BIGINT" "r_more" .Text "r_dead"}}
{{.Vars "BIGINT" "v_now" "BIGINT" "v_ends" "BIGINT" "v_left" .Text "v_resource" "BIGINT" "v_code" "BIGINT" "v_token" "BIGINT" "v_pause" .Text "v_kind" "BIGINT" "v_capacity" "BIGINT" "v_barging"}}
  {{.Set}} r_more := 0;
  {{.OwnSession "p_session"}}
  {{.Set}} v_now := {{.Now}};
  {{.Set}} v_ends := COALESCE((SELECT s.ends FROM {{.P}}sessions s WHERE s.id = p_session), 0);
  IF p_force = 1 OR v_ends <= v_now THEN
    UPDATE {{.P}}sessions SET ends = 0 WHERE id = p_session AND ends <> 0;
    {{.Set}} v_left := 50;
    WHILE v_left > 0 {{.Do}}
      {{.Set}} v_resource := (SELECT c.resource FROM {{.P}}claims c WHERE c.session = p_session ORDER BY c.session, c.slot LIMIT 1);
      IF v_resource IS NULL THEN
        {{.Set}} v_left := -1;
        DELETE FROM {{.P}}sessions WHERE id = p_session;
      ELSE
        {{.Set}} v_left := v_left - 1;
        {{.CallStep "'look'" "p_session" "v_resource" "''" "''" "''" "0" "''" "0" "0" "0" "v_code" "v_token" "v_pause" "v_kind" "v_capacity" "v_barging"}}
      END IF;
    END {{.Loop}};
    IF v_left = 0 THEN
      {{.Set}} r_more := 1;
    END IF;
  END IF;
  {{.Set}} r_dead := COALESCE((SELECT s.id FROM {{.P}}sessions s WHERE s.ends <= v_now AND s.id <> p_session ORDER BY s.ends LIMIT 1), '');
{{.End}}
{{end}}

{{define "start"}}
{{.Proc "start" .Text "p_session" "BIGINT" "p_ttl" .Text "p_label" .Text "p_client" "BIGINT" "r_done"}}
{{.Vars "BIGINT" "v_now"}}
  {{.Set}} r_done := 1;
  {{.Set}} v_now := {{.Now}};
  {{.Boot "v_now" "p_ttl"}}
  INSERT INTO {{.P}}sessions (id, ends, ttl, label, client) VALUES (p_session, v_now + p_ttl, p_ttl, p_label, p_client);
{{.End}}
{{end}}

{{/* put writes a value that is at p_version, and returns the version that was
found and the one that was written: 0 for none. */}}
{{define "put"}}
{{.Proc "put" .Text "p_name" "BIGINT" "p_version" "BIGINT" "p_delete" .Blob "p_data" "BIGINT" "r_found" "BIGINT" "r_written"}}
{{.Vars "BIGINT" "v_slot" "BIGINT" "v_now"}}
  {{.Lock "p_name" "v_slot"}}
  {{.Set}} v_now := {{.Now}};
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

{{/* renew returns whether the session lives, one that does not, and what it holds. */}}
{{define "renew"}}
{{.Rows "renew" .Text "p_session" "BIGINT" "alive" .Text "dead" .Text "held"}}
{{.Vars "BIGINT" "v_now" "BIGINT" "v_alive" .Text "v_dead"}}
  {{.Set}} v_now := {{.Now}};
  UPDATE {{.P}}sessions SET ends = v_now + ttl WHERE id = p_session AND ends > v_now;
  {{.Set}} v_alive := (SELECT COUNT(*) FROM {{.P}}sessions s WHERE s.id = p_session AND s.ends > v_now);
  {{.Set}} v_dead := COALESCE((SELECT s.id FROM {{.P}}sessions s WHERE s.ends <= v_now ORDER BY s.ends LIMIT 1), '');
  {{.Return}} SELECT v_alive, v_dead, c.id FROM (SELECT 1 AS one) o LEFT JOIN {{.P}}claims c ON c.session = p_session AND c.token <> 0;
{{.End}}
{{end}}

{{/* The rest is asked as it is. */}}
{{define "list"}}SELECT DISTINCT c.resource FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session
  WHERE c.resource >= {{.Arg 1}} AND c.resource <= {{.Arg 2}} AND s.ends > {{.Now}}{{end}}

{{define "show"}}SELECT c.session, c.id, c.owner, c.label, c.weight, c.token, GREATEST({{.Now}} - c.since, 0), GREATEST({{.Now}} - c.granted, 0),
    GREATEST(s.ends - {{.Now}}, 0), c.kind, c.capacity, c.barging
  FROM {{.P}}claims c JOIN {{.P}}sessions s ON s.id = c.session
  WHERE c.resource = {{.Arg 1}} AND s.ends > {{.Now}} ORDER BY c.place{{end}}

{{define "get"}}SELECT v.data, v.version FROM {{.P}}values v WHERE v.name = {{.Arg 1}}{{end}}

{{/* waited is what became of all that wait or have waited in one client. */}}
{{define "waited"}}SELECT c.id, c.token, c.waited FROM {{.P}}sessions s JOIN {{.P}}claims c ON c.session = s.id
  WHERE s.client = {{.Arg 1}} AND s.ends > {{.Now}} AND c.waited <> 0{{end}}
