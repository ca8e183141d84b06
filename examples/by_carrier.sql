-- A topic as a temporary view. Run it with:  spark-sql -f examples/by_carrier.sql
-- Use a temporary view: a table made with CREATE TABLE ... USING loses its options in Spark 4.3.
CREATE TEMPORARY VIEW messages USING tandemmq
OPTIONS (
  nameServer '127.0.0.1:9876',
  topic 'Flights',
  columns 'queueId,queueOffset,tags,body'
);

CREATE TEMPORARY VIEW flights AS
SELECT queueId, queueOffset, flight.*
FROM (
  SELECT *, from_json(cast(body AS STRING), 'carrier STRING, origin STRING, hour INT, delay DOUBLE') AS flight
  FROM messages
);

SELECT carrier, count(*) AS flights, round(avg(delay), 1) AS mean_delay
FROM flights
GROUP BY carrier
ORDER BY carrier;
