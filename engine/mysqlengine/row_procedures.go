package mysqlengine

import (
	"fmt"

	"github.com/pawl-go/pawl/internal/rowengine"
)

// Pieces of the procedures of row mode.
const (
	rowArgs = `(IN p_name VARBINARY(512), IN p_claim VARBINARY(512), IN p_owner VARBINARY(512), IN p_session VARBINARY(512),
		IN p_label VARBINARY(512), IN p_barging BOOLEAN, IN p_wait BOOLEAN, IN p_ttl INT)`
	rowInsert = `INSERT INTO pawl_row_claims (held, conn, resource, claim, owner, session, label, barging, since, granted)
		VALUES (v_row IS NOT NULL, CONNECTION_ID(), p_name, p_claim, p_owner, p_session, p_label, p_barging, COALESCE(v_since, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6))`
	// The number of the server, as an INT. A replica has the mark of its primary, and needs one of its own when it takes over.
	rowServer = `CAST(@@GLOBAL.server_id AS SIGNED) - 2147483648`
	// A holder that learns that the server was made read-only leaves the row to a waiter. So a waiter asks, too.
	rowAnswer = writable + ` SELECT IF(v_row IS NULL, 0, LAST_INSERT_ID()), GREATEST(0, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), @pawl_ready))`
)

// rowProcedures are the procedures of row mode, by name.
var rowProcedures = map[string]string{
	// A connection does this when it is used for the first time, and again after a second. Meanwhile another server may have
	// taken over and given back. That server granted nothing for a TTL, which is a second at least. The first client that
	// notices a restart, or that another server was used last, says when the server may give something out. Holders from
	// before may believe for a TTL. Numbers go on from the time at least. A number that is in use already is waited for a moment only.
	"prepare": `() BEGIN
			DECLARE v_patience INT DEFAULT @@SESSION.innodb_lock_wait_timeout;
			SET @pawl_seen = UTC_TIMESTAMP(6);
			UPDATE pawl_row_meta SET moved = IF(server = 0, moved, UTC_TIMESTAMP(6) + INTERVAL ttl MICROSECOND), server = @@GLOBAL.server_id WHERE server <> @@GLOBAL.server_id;
			INSERT IGNORE INTO pawl_row_boot (one, ready)
				SELECT ` + rowServer + `, UTC_TIMESTAMP(6) + INTERVAL MAX(ttl) MICROSECOND FROM pawl_row_meta;
			SET SESSION innodb_lock_wait_timeout = 1;
			START TRANSACTION;
			BEGIN DECLARE CONTINUE HANDLER FOR 1205 BEGIN END;
				INSERT IGNORE INTO pawl_row_claims (id, held, conn, resource, claim, owner, session, label, barging, since)
					VALUES (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, 0, '', '', '', '', '', 0, UTC_TIMESTAMP(6));
			END;
			ROLLBACK;
			SET SESSION innodb_lock_wait_timeout = v_patience;
			SELECT GREATEST(ready, (SELECT MAX(moved) FROM pawl_row_meta)) INTO @pawl_ready FROM pawl_row_boot WHERE one = ` + rowServer + `;
		END`,
	"enter": rowArgs + ` BEGIN
			DECLARE v_row, v_known BIGINT UNSIGNED DEFAULT NULL;
			DECLARE v_since DATETIME(6) DEFAULT NULL;
			DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
			` + writable + `
			IF @pawl_idle IS NULL THEN
				SET @pawl_idle = @@SESSION.wait_timeout, SESSION wait_timeout = p_ttl;
			ELSE -- it looks again
				ROLLBACK;
			END IF;
			IF COALESCE(@pawl_seen < UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, TRUE) THEN
				CALL pawl_row_prepare();
			END IF;
			SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
			START TRANSACTION;
			SELECT id INTO v_row FROM pawl_row_names WHERE name = p_name FOR UPDATE SKIP LOCKED;
			IF v_row IS NULL THEN
				SELECT id INTO v_known FROM pawl_row_names WHERE name = p_name;
				IF v_known IS NULL THEN
					ROLLBACK;
					CALL pawl_row_name(p_name);
					SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
					START TRANSACTION;
					SELECT id INTO v_row FROM pawl_row_names WHERE name = p_name FOR UPDATE SKIP LOCKED;
				END IF;
			END IF;
			IF v_row IS NOT NULL OR p_wait THEN
				` + rowInsert + `;
				IF v_row IS NULL THEN
					SET @pawl_claim = LAST_INSERT_ID();
				END IF;
			END IF;
			` + rowAnswer + `;
		END`,
	"wait": rowArgs + ` BEGIN
			DECLARE v_row BIGINT UNSIGNED DEFAULT NULL;
			DECLARE v_since DATETIME(6) DEFAULT NULL;
			DECLARE v_patience INT DEFAULT @@SESSION.innodb_lock_wait_timeout;
			DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
			DECLARE CONTINUE HANDLER FOR 1205 BEGIN END; -- lock wait time-out
			SET SESSION innodb_lock_wait_timeout = p_ttl;
			SELECT id INTO v_row FROM pawl_row_names WHERE name = p_name FOR UPDATE;
			SET SESSION innodb_lock_wait_timeout = v_patience;
			IF v_row IS NOT NULL THEN
				SET v_since = (SELECT since FROM pawl_row_claims WHERE id = @pawl_claim);
				` + rowInsert + `;
				DELETE FROM pawl_row_claims WHERE id = @pawl_claim;
			END IF;
			` + rowAnswer + `;
		END`,
	"leave": `() BEGIN
			ROLLBACK;
			SET SESSION wait_timeout = @pawl_idle, @pawl_idle = NULL;
		END`,
	// Another client that makes the same name at once may have locked it already: then it is there.
	// A new name makes old ones go that nobody uses.
	"name": fmt.Sprintf(`(IN p_name VARBINARY(512)) BEGIN
			DECLARE v_new, v_row BIGINT UNSIGNED DEFAULT NULL;
			DECLARE v_left INT DEFAULT %[1]d;
			DECLARE v_patience INT DEFAULT @@SESSION.innodb_lock_wait_timeout;
			DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_left = 0;
			DECLARE CONTINUE HANDLER FOR 1205 BEGIN END;
			SET SESSION innodb_lock_wait_timeout = 1;
			INSERT IGNORE INTO pawl_row_names (name) VALUES (p_name);
			SET v_new = IF(ROW_COUNT() = 1, LAST_INSERT_ID(), 1);
			COMMIT;
			IF v_new %% %[2]d = 0 AND v_new > %[3]d THEN
				SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
				START TRANSACTION;
				WHILE v_left > 0 DO
					SELECT id INTO v_row FROM pawl_row_names WHERE id <= v_new - %[3]d ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
					DELETE FROM pawl_row_names WHERE id = v_row AND v_left > 0;
					SET v_left = v_left - 1;
				END WHILE;
				COMMIT;
			END IF;
			SET SESSION innodb_lock_wait_timeout = v_patience;
		END`, 2*rowengine.TrimEvery, rowengine.TrimEvery, rowengine.KeptNames),
}
