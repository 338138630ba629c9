  IF NOT EXISTS (SELECT FROM P.boot) OR (SELECT m.ttl FROM P.meta m) < TTL THEN
    PERFORM pg_advisory_xact_lock(LOCK);
    UPDATE P.meta m SET ttl = TTL WHERE m.ttl < TTL;
    THEN_NOW := NOW;
    IF NOT EXISTS (SELECT FROM P.boot) THEN
      PERFORM setval('TOKENS', GREATEST((SELECT t.last_value FROM P.tokens t) + 1, THEN_NOW));
      INSERT INTO P.boot (grace) SELECT THEN_NOW + m.ttl FROM P.meta m;
    END IF;
  END IF;
