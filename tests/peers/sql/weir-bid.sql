SET 'execution.checkpointing.interval' = '5s';
CREATE STREAM bid (
  auction BIGINT, bidder BIGINT, price BIGINT, channel TEXT, url TEXT, date_time TIMESTAMP, extra TEXT,
  WATERMARK FOR date_time AS date_time - INTERVAL '4 seconds'
) WITH (connector = 'file', path = '@DATA@/*.jsonl', format = 'json');
