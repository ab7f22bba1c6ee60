CREATE TABLE answers (auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP(3), extra STRING) WITH ('connector' = 'blackhole');
INSERT INTO answers SELECT auction, bidder, price, date_time, extra FROM bid;
