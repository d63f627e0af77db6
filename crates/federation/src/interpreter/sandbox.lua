-- Runs once in every new VM, before any script: removes the functions that scripts must not use.
-- Arguments: expired() returns whether the call has exceeded its budget; refuse(name) returns a function that raises.
local expired, refuse = ...
local pcall, xpcall, error, tostring, type, select = pcall, xpcall, error, tostring, type, select

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
local base, ipairs, pairs = _G, ipairs, pairs
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
