-- Flights out of New York City in January 2013: 27,004 departures from three airports.
-- Run it with `make demo`, or statement by statement in psql.

CREATE STREAM flights (
  year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE PRECISION,
  arr_time INT, sched_arr_time INT, arr_delay DOUBLE PRECISION, carrier TEXT, flight INT, tailnum TEXT,
  origin TEXT, dest TEXT, air_time DOUBLE PRECISION, distance DOUBLE PRECISION, hour INT, minute INT,
  time_hour TIMESTAMPTZ,
  WATERMARK FOR time_hour AS time_hour - INTERVAL '1 day'
) WITH (connector = 'file', path = 'data/flights-2013-01.csv', format = 'csv', header = 'true', null = 'NA');

CREATE STREAM weather (
  origin TEXT, temp DOUBLE PRECISION, wind_speed DOUBLE PRECISION, visib DOUBLE PRECISION, time_hour TIMESTAMPTZ
) WITH (connector = 'file', path = 'data/weather-2013-01.csv', format = 'csv', header = 'true', null = 'NA');

CREATE STREAM planes (
  tailnum TEXT, year INT, manufacturer TEXT, model TEXT, seats INT
) WITH (connector = 'file', path = 'data/planes.csv', format = 'csv', header = 'true', null = 'NA');

-- One row an airport and day, final when the day can get no more departures.
CREATE MATERIALIZED VIEW departures AS
  SELECT origin, window_start, count(*) AS scheduled, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
  FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
  GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE;

-- The busiest routes, kept up to date with every flight.
CREATE MATERIALIZED VIEW routes AS
  SELECT origin, dest, count(*) AS flights, avg(arr_delay) AS mean_delay FROM flights GROUP BY origin, dest;

-- Each long delay beside that hour's weather at its airport.
CREATE MATERIALIZED VIEW stormy AS
  SELECT f.carrier, f.flight, f.origin, f.time_hour, f.dep_delay, w.wind_speed, w.visib
  FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
  WHERE f.dep_delay > 180;

-- Delays by the plane's manufacturer.
CREATE MATERIALIZED VIEW manufacturers AS
  SELECT p.manufacturer, count(*) AS flights, avg(f.arr_delay) AS mean_delay
  FROM flights f JOIN planes p ON f.tailnum = p.tailnum GROUP BY p.manufacturer;

SELECT * FROM departures ORDER BY mean_delay DESC LIMIT 5;
SELECT * FROM routes ORDER BY flights DESC, origin LIMIT 5;
SELECT * FROM stormy ORDER BY dep_delay DESC LIMIT 5;
SELECT * FROM manufacturers ORDER BY flights DESC LIMIT 5;
