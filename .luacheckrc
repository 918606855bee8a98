-- Lua 5.1, as Redis runs it; servers that run a later one have `table.unpack`.
std = "lua51"
read_globals = { "redis", "cmsgpack", "KEYS", "ARGV", table = { fields = { "unpack" } } }
exclude_files = { "target" }
-- A function of a strategy has all of its parameters, as lua.rs lists them.
unused_args = false
max_line_length = 130
max_comment_line_length = false
