  -- A claim enters here where nobody is. A claim for the whole capacity also waits here behind
  -- a live holder of all, if both agree. A claim leaves here where nobody else is, or where
  -- nobody else holds and the next claim wants all. A waiting claim that is not the first leaves here, too.
  IF p_op = 'enter' THEN
    INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
      SELECT p_resource, 1, p_session, p_id, p_owner, p_label, p_weight, nextval('TOKENS'), v_now, v_now, p_kind, p_capacity, p_barging, 0, 0, v_slot
      FROM P.sessions s WHERE s.id = p_session AND s.ends > v_now
        AND NOT EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource)GIVES
      RETURNING token INTO r_token;
    IF FOUND THEN RETURN; END IF;
    r_token := 0;
    IF p_wait = 1 AND p_barging = 0 AND p_owner = p_id AND p_weight = p_capacity THEN
      SELECT h.ends INTO v_next FROM P.claims c JOIN P.sessions h ON h.id = c.session, P.sessions s
        WHERE c.resource = p_resource AND c.waits = 0 AND c.weight = c.capacity AND h.ends > v_now AND c.kind = p_kind AND c.capacity = p_capacity
          AND c.barging = 0 AND s.id = p_session AND s.ends > v_now
          AND NOT EXISTS (SELECT 1 FROM P.claims o WHERE o.session = p_session AND o.news IN (0, 1) AND o.slot = v_slot AND o.id = p_id)
        ORDER BY h.ends LIMIT 1;
      IF FOUND THEN
        INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
          SELECT p_resource, 1 + GREATEST((SELECT MAX(c.place) FROM P.claims c WHERE c.resource = p_resource AND c.waits = 0),
              (SELECT MAX(c.place) FROM P.claims c WHERE c.resource = p_resource AND c.waits = 1)),
            p_session, p_id, p_owner, p_label, p_weight, 0, v_now, 0, p_kind, p_capacity, 0, 1, 0, v_slot;
        r_pause := v_next - v_now;
        RETURN;
      END IF;
    END IF;
  ELSIF p_op = 'leave' THEN
    DELETE FROM P.claims c USING P.sessions s WHERE c.session = p_session AND c.news IN (0, 1) AND c.slot = v_slot AND c.id = p_id
      AND concat(c.resource) = p_resource AND s.id = p_session AND s.ends > v_now
      RETURNING c.token, c.place, c.weight, c.held INTO v_token, v_place, v_weight, v_sum;
    IF FOUND THEN
      SELECT c.waits, c.place INTO v_own, v_first FROM P.claims c WHERE c.resource = p_resource ORDER BY c.resource, c.waits, c.place LIMIT 1;
      IF NOT FOUND THEN RETURN; END IF;
      IF v_token = 0 THEN
        IF EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource AND c.waits = 1 AND c.place < v_place) THEN RETURN; END IF;
      ELSIF v_own = 1 THEN
        UPDATE P.claims c SET token = nextval('TOKENS'), granted = v_now, waits = 0, news = 1 FROM P.sessions s
          WHERE c.resource = p_resource AND c.waits = 1 AND c.place = v_first AND c.weight = c.capacity AND c.barging = 0 AND c.owner = c.id
            AND NOT COALESCE((SELECT o.owner = c.id OR COALESCE(e.ends, 0) <= v_now FROM P.claims o LEFT JOIN P.sessions e ON e.id = o.session
              WHERE o.resource = p_resource AND o.waits = 1 AND o.place > v_first ORDER BY o.resource, o.waits, o.place LIMIT 1), false)
            AND s.id = c.session AND s.ends > v_nowGIVES
          RETURNING c.token, c.id, s.id INTO v_token, v_owner, v_session;
        IF FOUND THEN
          TELL
          RETURN;
        END IF;
      END IF;
      v_less := CASE WHEN v_token = 0 THEN 0 ELSE v_weight END;
      v_left := 1; v_own := 0; v_first := 0; v_token := NULL; v_owner := NULL; v_session := NULL;
    END IF;
  END IF;
