  -- Enter where nobody is, or wait for all behind one that holds all, if all agree
  -- and live; leave where nobody else is, or where the next one wants all and
  -- nobody holds.
  IF p_op = 'enter' THEN
    INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waited, slot)
      SELECT p_resource, 1, p_session, p_id, p_owner, p_label, p_weight, nextval('TOKENS'), v_now, v_now, p_kind, p_capacity, p_barging, 0, v_slot
      FROM P.sessions s WHERE s.id = p_session AND s.ends > v_now
        AND NOT EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource)GRACE
      RETURNING token INTO r_token;
    IF FOUND THEN RETURN; END IF;
    r_token := 0;
    IF p_wait = 1 AND p_barging = 0 AND p_owner = p_id AND p_weight = p_capacity THEN
      SELECT MAX(c.place), MIN(s.ends) INTO v_top, v_next FROM P.claims c LEFT JOIN P.sessions s ON s.id = c.session
        WHERE c.resource = p_resource
        HAVING bool_and(COALESCE(s.ends, 0) > v_now AND c.kind = p_kind AND c.capacity = p_capacity AND c.barging = 0 AND c.id <> p_id)
          AND bool_or(c.token <> 0 AND c.weight = c.capacity);
      IF FOUND AND EXISTS (SELECT 1 FROM P.sessions s WHERE s.id = p_session AND s.ends > v_now) THEN
        INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waited, slot)
          VALUES (p_resource, v_top + 1, p_session, p_id, p_owner, p_label, p_weight, 0, v_now, 0, p_kind, p_capacity, 0, 1, v_slot);
        r_pause := v_next - v_now;
        RETURN;
      END IF;
    END IF;
  ELSIF p_op = 'leave' THEN
    DELETE FROM P.claims c USING P.sessions s WHERE c.resource = p_resource AND c.id = p_id AND c.session = p_session
      AND s.id = p_session AND s.ends > v_now;
    IF FOUND THEN
      IF NOT EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource) THEN RETURN; END IF;
      UPDATE P.claims u SET token = nextval('TOKENS'), granted = v_now FROM (
          SELECT c.place, s.id, s.client FROM P.claims c JOIN P.sessions s ON s.id = c.session AND s.ends > v_now
          WHERE c.resource = p_resource AND c.place = (SELECT f.place FROM P.claims f WHERE f.resource = p_resource ORDER BY f.place LIMIT 1)
            AND c.token = 0 AND c.weight = c.capacity AND c.barging = 0 AND c.owner = c.id
            AND NOT EXISTS (SELECT 1 FROM P.claims g WHERE g.resource = p_resource AND g.token <> 0)GRACE
        ) n WHERE u.resource = p_resource AND u.place = n.place
        RETURNING u.token, u.id, n.id, n.client INTO v_token, v_owner, v_session, v_kind;
      IF FOUND THEN
        IF left(v_kind, 1) <> '-' THEN
          PERFORM pg_notify('pawl_' || v_kind, concat_ws(' ', v_token, 0, v_session, v_owner));
        END IF;
        RETURN;
      END IF;
      v_left := 1;
    END IF;
  END IF;
