  -- Enter where nobody is, leave where nobody else is.
  IF p_op = 'enter' THEN
    INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, kind, capacity, barging, waited, slot)
      SELECT p_resource, 1, p_session, p_id, p_owner, p_label, p_weight, nextval('TOKENS'), v_now, p_kind, p_capacity, p_barging, 0, v_slot
      FROM P.sessions s WHERE s.id = p_session AND s.ends > v_now
        AND NOT EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource)GRACE
      RETURNING token INTO r_token;
    IF FOUND THEN RETURN; END IF;
    r_token := 0;
  ELSIF p_op = 'leave' THEN
    DELETE FROM P.claims c USING P.sessions s WHERE c.resource = p_resource AND c.id = p_id AND c.session = p_session
      AND s.id = p_session AND s.ends > v_now;
    IF FOUND THEN
      IF NOT EXISTS (SELECT 1 FROM P.claims c WHERE c.resource = p_resource) THEN RETURN; END IF;
      v_left := 1;
    END IF;
  END IF;
