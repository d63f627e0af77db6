-- Runs once in every new VM, before any script: removes the functions that scripts must not use.
-- Arguments: expired() returns whether the call has exceeded its budget; spend(bytes) takes the work on this number of
-- bytes from the budget and raises when it is exhausted; log(line) writes to the log.
--
-- Instructions of Lua functions are counted, work inside a C function is not. So functions with loops are written in
-- Lua here, and functions that read or write a whole string spend its length. The rest take constant time, or time
-- proportional to their arguments, of which a call has at most 8,000. The table in host/bounds.rs lists every one.
local expired, spend, log = ...
local pcall, xpcall, error, tostring, type, select = pcall, xpcall, error, tostring, type, select
local tonumber, pairs, min, floor = tonumber, pairs, math.min, math.floor

local function refuse(name)
  return function() error(name .. " is not available to interpreter scripts", 0) end
end
-- Work on up to 256 bytes takes no longer than the call itself.
local function spend_text(text)
  if type(text) == "string" and #text > 256 then spend(#text) end
end
local function check_table(value, name)
  if type(value) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(value) .. ")", 3)
  end
end
local function check_integer(value, default, name)
  if value == nil then return default end
  local number = tonumber(value)
  if number == nil then error("bad argument to '" .. name .. "' (number expected, got " .. type(value) .. ")", 3) end
  return floor(number)
end

for _, name in ipairs({ "lower", "upper", "reverse" }) do
  local call = string[name]
  string[name] = function(text)
    spend_text(text)
    return call(text)
  end
end
local sub = string.sub
string.sub = function(text, from, to)
  local part = sub(text, from, to)
  spend_text(part)
  return part
end
local format = string.format
string.format = function(pattern, ...)
  spend_text(pattern)
  local values = { ... }
  for i = 1, select("#", ...) do spend_text(values[i]) end
  return format(pattern, ...)
end
_G.tonumber = function(value, base)
  spend_text(value)
  if base == nil then return tonumber(value) end
  return tonumber(value, base)
end
_G.print = function(...)
  local words = {}
  for i = 1, min(select("#", ...), 16) do words[i] = sub(tostring((select(i, ...))), 1, 256) end
  log(table.concat(words, "\t"))
end

-- In C the number of results is computed with an overflow, so that a call could write beyond the stack.
local unpack = unpack
_G.unpack = function(list, from, to)
  check_table(list, "unpack")
  from, to = check_integer(from, 1, "unpack"), check_integer(to, #list, "unpack")
  if not (from > -2 ^ 31 and to < 2 ^ 31 - 1 and to - from < 4096) then error("too many results to unpack", 2) end
  return unpack(list, from, to)
end

-- A merge sort: it ends with any order function, and its comparisons do not depend on the data as a quicksort's do.
local function less(a, b) return a < b end
function table.sort(list, before)
  check_table(list, "sort")
  before = before or less
  if type(before) ~= "function" then
    error("bad argument #2 to 'sort' (function expected, got " .. type(before) .. ")", 2)
  end
  local length = #list
  local from, to = {}, {}
  for i = 1, length do from[i] = list[i] end
  local width = 1
  while width < length do
    for low = 1, length, 2 * width do
      local middle, high = min(low + width, length + 1), min(low + 2 * width, length + 1)
      local i, j = low, middle
      for k = low, high - 1 do
        if i < middle and (j >= high or not before(from[j], from[i])) then
          to[k], i = from[i], i + 1
        else
          to[k], j = from[j], j + 1
        end
      end
    end
    from, to = to, from
    width = 2 * width
  end
  for i = 1, length do list[i] = from[i] end
end
function table.insert(list, ...)
  check_table(list, "insert")
  local count, free = select("#", ...), #list + 1
  local at, value = ...
  if count == 1 then
    list[free] = at
  elseif count == 2 then
    at = check_integer(at, free, "insert")
    if at > free then free = at end
    for i = free, at + 1, -1 do list[i] = list[i - 1] end
    list[at] = value
  else
    error("wrong number of arguments to 'insert'", 2)
  end
end
function table.remove(list, at)
  check_table(list, "remove")
  local last = #list
  at = check_integer(at, last, "remove")
  if at < 1 or at > last then return end
  local value = list[at]
  for i = at, last - 1 do list[i] = list[i + 1] end
  list[last] = nil
  return value
end
local concat = table.concat
function table.concat(list, separator, from, to)
  check_table(list, "concat")
  from, to = check_integer(from, 1, "concat"), check_integer(to, #list, "concat")
  local separated = type(separator) == "string" and #separator or 0
  for i = from, to do
    local value = list[i]
    if value == nil then break end
    if type(value) == "string" and #value + separated > 256 then spend(#value + separated) end
  end
  return concat(list, separator, from, to)
end
function table.foreach(list, call)
  check_table(list, "foreach")
  for key, value in pairs(list) do
    local result = call(key, value)
    if result ~= nil then return result end
  end
end
function table.foreachi(list, call)
  check_table(list, "foreachi")
  for i = 1, #list do
    local result = call(i, list[i])
    if result ~= nil then return result end
  end
end
function table.getn(list)
  check_table(list, "getn")
  return #list
end
function table.maxn(list)
  check_table(list, "maxn")
  local largest = 0
  for key in pairs(list) do
    if type(key) == "number" and key > largest then largest = key end
  end
  return largest
end
table.setn = refuse("table.setn")

-- A script that catches the interrupt could run forever: the error is raised again at every level.
local function rethrow_interrupt(ok, first, ...)
  if not ok then
    if expired() then error("interrupted: the script exceeded its budget", 0) end
    if type(first) == "userdata" then first = tostring(first) end
  end
  return ok, first, ...
end
-- Lua 5.1 gives a C function 20 stack slots and does not check whether the results of a protected call fit.
local function fitting(count, ...)
  if count > 16 then error("a protected call may return at most 16 values", 0) end
  return ...
end
local function counted(...) return fitting(select("#", ...), ...) end
local function guard(call, ...) return counted(call(...)) end
_G.pcall = function(...) return rethrow_interrupt(pcall(guard, ...)) end
-- A handler runs where the error is raised. The interrupt is raised in the counting hook, in which instructions are not
-- counted: a handler called there would never be stopped.
_G.xpcall = function(call, handler)
  local function handle(message)
    if expired() then return message end
    return handler(message)
  end
  return rethrow_interrupt(xpcall(function() return counted(call()) end, handle))
end

for _, name in ipairs({
  "collectgarbage", "dofile", "getfenv", "getmetatable", "load", "loadfile", "loadstring", "rawequal", "rawget",
  "rawset", "setfenv", "setmetatable", "module", "newproxy",
}) do
  _G[name] = refuse(name)
end
for _, name in ipairs({ "dump", "gsub", "rep" }) do
  string[name] = refuse("string." .. name)
end
string.gfind, coroutine, gcinfo, debug, io, package = nil, nil, nil, nil, nil, nil

-- Every call gets its own globals: changes of a library or global by one call are not visible to the next call, which
-- may belong to another object.
local base, ipairs = _G, ipairs
local plain = {
  "assert", "collectgarbage", "dofile", "error", "getfenv", "getmetatable", "ipairs", "load", "loadfile", "loadstring",
  "module", "newproxy", "next", "pairs", "pcall", "print", "rawequal", "rawget", "rawset", "require", "select",
  "setfenv", "setmetatable", "tonumber", "tostring", "type", "unpack", "xpcall", "_VERSION",
}
local libraries = { "string", "table", "math", "os" }
return function()
  local fresh = {}
  for _, name in ipairs(plain) do fresh[name] = base[name] end
  for _, name in ipairs(libraries) do
    local copy = {}
    for key, value in pairs(base[name]) do copy[key] = value end
    fresh[name] = copy
  end
  fresh._G = fresh
  return fresh
end
