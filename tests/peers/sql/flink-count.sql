CREATE TABLE answers (bidder BIGINT, window_start TIMESTAMP(3), n BIGINT) WITH ('connector' = 'blackhole');
INSERT INTO answers SELECT bidder, window_start, count(*) FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end;
