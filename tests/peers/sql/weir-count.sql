CREATE SINK result AS
  SELECT bidder, window_start, count(*) AS n
  FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10 seconds')
  GROUP BY bidder, window_start, window_end EMIT ON WINDOW CLOSE
  WITH (connector = 'blackhole');
