CREATE OR REPLACE PROCEDURE P.booted() LANGUAGE plpgsql AS $pawl$
BEGIN
  PERFORM pg_advisory_xact_lock(LOCK);
  IF NOT EXISTS (SELECT FROM P.boot b WHERE b.one = 1) THEN
    INSERT INTO P.boot (grace, since, started) SELECT NOW + m.ttl, NOW, 'epoch' FROM P.meta m WHERE m.one = 1;
  END IF;
  -- New tables, and those of an older version, have no home yet. A restored table may have forgotten, as an empty one.
  UPDATE P.boot b SET started = pg_postmaster_start_time(), home = b.tableoid,
      grace = CASE WHEN b.home IN (0, b.tableoid) THEN b.grace ELSE NOW + m.ttl END, since = CASE WHEN b.home IN (0, b.tableoid) THEN b.since ELSE NOW END
    FROM P.meta m WHERE b.one = 1 AND m.one = 1 AND (b.started <> pg_postmaster_start_time() OR b.home <> b.tableoid);
  IF FOUND THEN
    PERFORM setval('TOKENS', GREATEST(nextval('TOKENS'), NOW));
  END IF;
END $pawl$
