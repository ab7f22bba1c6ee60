SELECT bidder, date_bin(INTERVAL '10 seconds', date_time) AS window_start, count(*) AS n FROM bid GROUP BY 1, 2
