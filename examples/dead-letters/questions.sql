-- Ten questions to the dead-letter tables. Spark, DataFusion (delta-rs) and DuckDB understand them;
-- docs/reference/dead-letter-tables.md says how to open the tables.

-- 1. How many events wait for a decision, by Trigger, and since when?
SELECT namespace, broker, "trigger", count(*) AS events, min(first_failed) AS since
FROM failures WHERE resolved IS NULL
GROUP BY namespace, broker, "trigger" ORDER BY events DESC, namespace, broker, "trigger";

-- 2. What are the most frequent errors?
SELECT reason, code, summary, count(*) AS events, max(last_failed) AS latest
FROM failures WHERE resolved IS NULL
GROUP BY reason, code, summary ORDER BY events DESC, reason, code NULLS LAST, summary LIMIT 10;

-- 3. Which destination fails whom?
SELECT destination, "trigger", count(*) AS events, sum(attempts) AS last_attempts
FROM failures WHERE resolved IS NULL
GROUP BY destination, "trigger" ORDER BY events DESC, destination, "trigger";

-- 4. Which kind of event fails?
SELECT type, source, count(*) AS events, sum(data_bytes) AS data_bytes
FROM failures GROUP BY type, source ORDER BY events DESC, type NULLS LAST, source NULLS LAST;

-- 5. How many failed for the first time on each day?
SELECT CAST(first_failed AS date) AS failed_on, count(*) AS events
FROM failures GROUP BY CAST(first_failed AS date) ORDER BY failed_on;

-- 6. Which events failed more than once?
SELECT id, source, "trigger", failures, first_failed, last_failed
FROM failures WHERE failures > 1 ORDER BY failures DESC, id, source, "trigger";

-- 7. Which events were resolved, and how?
SELECT f.id, f."trigger", f.resolved, s.replay_id
FROM failures f LEFT JOIN sent s ON s.failure_id = f.failure_id AND s.outcome = 'resolved'
WHERE f.resolved IS NOT NULL ORDER BY f.resolved, f.id;

-- 8. What became of the events that were replayed?
SELECT replay_id, coalesce(outcome, 'not settled') AS outcome, count(*) AS events
FROM sent GROUP BY replay_id, coalesce(outcome, 'not settled') ORDER BY replay_id, outcome;

-- 9. Which dead letters of an event are there, and where did they lie?
SELECT r.topic, r."partition", r."offset", r.appended, r.reason, r.code, r.error
FROM records r JOIN failures f ON r.failure_id = f.failure_id
WHERE f.id = 'one' ORDER BY r.appended, r."partition", r."offset";

-- 10. How many dead letters came on each day, from which topics?
SELECT day, topic, count(*) AS dead_letters, sum(data_bytes) AS data_bytes
FROM records GROUP BY day, topic ORDER BY day, topic;
