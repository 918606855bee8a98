-- Prints what wrk measured as one line of JSON, times in microseconds.
--
-- luacheck: globals done

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"us":%d,"p50_us":%.0f,"p99_us":%.0f,"statuses":%d,"failures":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout
  ))
end
