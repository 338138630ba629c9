DO $pawl$
DECLARE v_routine regprocedure; v_live BIGINT := 0; v_mark TEXT;
BEGIN
  IF NOT EXISTS (SELECT FROM P.meta m WHERE m.version < LAYOUT) THEN RETURN; END IF;
  -- Routines of a version with other tables do not know the tables of this one: only where
  -- nobody uses them are they replaced. Values and tokens stay.
  IF to_regclass($q$P.sessions$q$) IS NOT NULL THEN
    -- A client that opens a session meanwhile is seen: its transaction ends before.
    EXECUTE $q$LOCK TABLE P.sessions, P.claims IN ACCESS EXCLUSIVE MODE$q$;
    EXECUTE $q$SELECT count(*) FROM P.sessions WHERE ends > NOW$q$ INTO v_live;
  END IF;
  IF v_live > 0 THEN
    SELECT concat(m.version, ', format ', coalesce(m.format, '1')) INTO v_mark FROM P.meta m;
    RAISE EXCEPTION '% sessions use it as version %: stop those clients first, or use another schema', v_live, v_mark USING ERRCODE = 'INUSE';
  END IF;
  FOR v_routine IN SELECT r.oid::regprocedure FROM pg_proc r WHERE r.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = $q$P.meta$q$::regclass)
      AND r.proname IN ('fits', 'advance', 'step', 'finish', 'start', 'put', 'renew', 'booted') LOOP
    EXECUTE format('DROP ROUTINE %s', v_routine);
  END LOOP;
  DROP TABLE IF EXISTS P.told, P.claims, P.sessions, P.boot;
END $pawl$