import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, cell, duration, watermark } from "./format";
import { forget, rate, record } from "./rates";
import { parseExact } from "./json";

test("durations, sizes and watermarks read well", () => {
  assert.deepEqual([0, 340, 2100, 240_000, 410_000_000_000].map(duration), ["0 ms", "340 ms", "2.1 s", "4.0 min", "13 y"]);
  assert.deepEqual([412, 1500, 123_456_789].map(bytes), ["412 B", "1.5 kB", "123 MB"]);
  assert.equal(watermark(1_357_000_000_000_000), "2013-01-01 00:26:40");
  assert.equal(watermark(9_223_372_036_854_775_807), "end of input");
  assert.equal(watermark(null), "none yet");
});

test("a rate needs two samples, and a counter that fell starts anew", () => {
  forget();
  record("q", [100], 0);
  assert.equal(rate("q", 0), null);
  record("q", [300], 1000);
  assert.equal(rate("q", 0), 200);
  record("q", [5], 2000);
  assert.equal(rate("q", 0), null);
  record("q", [15], 3000);
  assert.equal(rate("q", 0), 10);
});

test("cells are shown as the server wrote them", () => {
  const row = parseExact('{"a":1.5,"b":[1,null],"c":null,"d":"x"}') as Record<string, never>;
  assert.deepEqual(Object.values(row).map(cell), ["1.5", "[1,null]", "NULL", "x"]);
});
