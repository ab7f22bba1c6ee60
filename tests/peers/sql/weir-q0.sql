CREATE SINK result AS SELECT auction, bidder, price, date_time, extra FROM bid WITH (connector = 'blackhole');
