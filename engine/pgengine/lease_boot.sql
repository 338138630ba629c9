CREATE OR REPLACE PROCEDURE P.booted() LANGUAGE plpgsql AS $pawl$
BEGIN
  PERFORM pg_advisory_xact_lock(LOCK);
  IF NOT EXISTS (SELECT FROM P.boot b WHERE b.one = 1) THEN
    INSERT INTO P.boot (grace, since, started) SELECT NOW + m.ttl, NOW, 'epoch' FROM P.meta m WHERE m.one = 1;
  END IF;
  UPDATE P.boot b SET started = pg_postmaster_start_time() WHERE b.one = 1 AND b.started <> pg_postmaster_start_time();
  IF FOUND THEN
    PERFORM setval('TOKENS', GREATEST(nextval('TOKENS'), NOW));
  END IF;
END $pawl$
