//! A pool of sandboxed Lua VMs for untrusted scripts.
//!
//! A call has three limits: instructions, wall-clock time and memory. The instruction limit is deterministic,
//! the time limit holds on a busy machine, and the memory limit stops growing strings. `pcall` cannot catch
//! any of them. Lua counts the instructions of Lua functions only, so every function of the host and of Lua's
//! standard library is bounded otherwise: see `host/bounds.rs`. The conversion of a result counts too. A VM
//! takes 43 µs to create and 32 KiB of memory, so VMs are pooled; a VM that hit a limit is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value as LuaValue, VmState,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::convert::{self, ConvertError};
use super::library;

/// Instructions between two checks of the budget; 100 instructions take about 1 µs, a check 0.05 µs. One
/// instruction that concatenates or compares strings of the largest size takes up to 10 ms, so a script is
/// stopped at most a second after its time limit.
const HOOK_INTERVAL: u32 = 100;
/// Bytes that a function of the host reads or writes in the time of one instruction.
const BYTES_PER_INSTRUCTION: u64 = 16;
/// Maximum length of a script's error message, in bytes: it is written to conditions and events.
const MAX_MESSAGE: usize = 4 << 10;
/// Idle VMs in the pool; further concurrent calls create VMs that are dropped afterwards.
const MAX_IDLE_VMS: usize = 16;
/// Compiled scripts per VM; at this number the cache is cleared, so that old versions do not accumulate.
const MAX_COMPILED: usize = 256;

/// Limits of one call.
#[derive(Debug, Clone, Copy)]
pub struct ScriptLimits {
    /// VM instructions; 20 million are about 0.2 s.
    pub instructions: u64,
    /// Wall-clock time.
    pub time: Duration,
    /// Bytes of Lua memory. The default of 64 MiB holds two objects of the largest size that Kubernetes
    /// accepts.
    pub memory: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        ScriptLimits { instructions: 20_000_000, time: Duration::from_secs(1), memory: 64 << 20 }
    }
}

/// Why a script returned no result.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ScriptError {
    /// The script is not valid Lua.
    #[error("failed to compile the script: {message}")]
    Compile {
        /// The message of the compiler.
        message: String,
    },
    /// The script lacks the function that the operation calls.
    #[error("the script defines no function {function}")]
    Missing {
        /// The name of the function.
        function: &'static str,
    },
    /// The script raised an error.
    #[error("{function} failed: {message}")]
    Raised {
        /// The function that was called.
        function: &'static str,
        /// The raised message.
        message: String,
    },
    /// The script exceeded its limit of instructions or time.
    #[error("{function} was stopped: it exceeded the limit of instructions or time (endless loop?)")]
    Interrupted {
        /// The function that was called.
        function: &'static str,
    },
    /// The script exceeded its memory limit.
    #[error("{function} was stopped: it exceeded the memory limit")]
    Memory {
        /// The function that was called.
        function: &'static str,
    },
    /// The result has the wrong type or cannot be converted to JSON.
    #[error("{function} returned an invalid result: {message}")]
    Unusable {
        /// The function that was called.
        function: &'static str,
        /// The cause.
        message: String,
    },
}

/// The clock for `os.time` and `os.date` in scripts.
pub type ScriptClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A pool of sandboxed Lua VMs.
pub struct LuaHost {
    limits: ScriptLimits,
    clock: ScriptClock,
    idle: Mutex<Vec<Vm>>,
}

impl LuaHost {
    /// A host with these limits and this clock.
    pub fn new(limits: ScriptLimits, clock: ScriptClock) -> Self {
        LuaHost { limits, clock, idle: Mutex::new(Vec::new()) }
    }

    /// Checks that a script compiles, without running it.
    pub fn check(&self, script: &str) -> Result<(), ScriptError> {
        let mut vm = self.acquire(script)?;
        let result = vm.compile(script).map(drop);
        self.release(vm);
        result
    }

    /// Bytes of memory of the idle VMs after a garbage collection.
    pub fn memory(&self) -> usize {
        let idle = self.idle.lock();
        idle.iter().map(Vm::collect_garbage).sum()
    }

    /// Calls `function` of `script` and converts its results with `read`.
    pub(super) fn call<T>(
        &self,
        script: &str,
        function: &'static str,
        arguments: &[&Value],
        read: impl FnOnce(&ScriptOutput<'_>) -> Result<T, String>,
    ) -> Result<T, ScriptError> {
        let mut vm = self.acquire(script)?;
        let result = vm.call(self.limits, script, function, arguments, read);
        match &result {
            Err(ScriptError::Interrupted { .. } | ScriptError::Memory { .. }) => drop(vm),
            _ => self.release(vm),
        }
        result
    }

    /// Takes an idle VM, preferably one that has compiled the script, or creates one.
    fn acquire(&self, script: &str) -> Result<Vm, ScriptError> {
        let mut idle = self.idle.lock();
        let position = idle.iter().rposition(|vm| vm.compiled.contains_key(script));
        if let Some(vm) = position.map(|at| idle.swap_remove(at)).or_else(|| idle.pop()) {
            return Ok(vm);
        }
        drop(idle);
        Vm::new(self.limits, self.clock.clone())
            .map_err(|error| ScriptError::Compile { message: format!("failed to create a Lua VM: {error}") })
    }

    fn release(&self, vm: Vm) {
        if vm.lua.used_memory() > self.limits.memory / 8 {
            vm.collect_garbage();
        }
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE_VMS {
            idle.push(vm);
        }
    }
}

/// The remaining budget of one call, shared by the VM's hook and the host functions.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicU64,
    expired: AtomicBool,
    deadline: Mutex<Instant>,
}

impl Budget {
    fn reset(&self, limits: ScriptLimits) {
        self.left.store(limits.instructions, Ordering::Relaxed);
        self.expired.store(false, Ordering::Relaxed);
        *self.deadline.lock() = Instant::now() + limits.time;
    }

    /// Takes `amount` from the budget; false when it is exhausted.
    pub(super) fn spend(&self, amount: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(amount), Ordering::Relaxed);
        if left <= amount || Instant::now() > *self.deadline.lock() {
            self.expired.store(true, Ordering::Relaxed);
        }
        !self.expired()
    }

    /// Takes the work on this number of bytes from the budget.
    pub(super) fn spend_bytes(&self, bytes: usize) -> bool {
        self.spend(bytes as u64 / BYTES_PER_INSTRUCTION + 1)
    }

    /// The remaining instructions, which also limit the steps of a pattern match.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    pub(super) fn expired(&self) -> bool {
        self.expired.load(Ordering::Relaxed)
    }
}

struct Vm {
    lua: Lua,
    budget: Arc<Budget>,
    /// Metatable of lists that came from JSON.
    array_metatable: Table,
    /// Creates the globals of one call.
    fresh: Function,
    /// The generator of `math.random`, reset for every call.
    random: library::Random,
    compiled: HashMap<Box<str>, Function>,
}

impl Vm {
    fn new(limits: ScriptLimits, clock: ScriptClock) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new())?;
        lua.set_memory_limit(limits.memory)?;
        let budget = Arc::new(Budget {
            left: AtomicU64::new(limits.instructions),
            expired: AtomicBool::new(false),
            deadline: Mutex::new(Instant::now() + limits.time),
        });
        let array_metatable = lua.create_table()?;
        let random = library::install(&lua, &array_metatable, &budget, clock)?;
        let expired = {
            let budget = budget.clone();
            lua.create_function(move |_, ()| Ok(budget.expired()))?
        };
        let spend = {
            let budget = budget.clone();
            lua.create_function(move |_, bytes: f64| match budget.spend_bytes(bytes as usize) {
                true => Ok(()),
                false => Err(interrupted()),
            })?
        };
        let log = lua.create_function(|_, line: LuaString| {
            tracing::debug!(target: "polis_federation::script", "{}", line.to_string_lossy());
            Ok(())
        })?;
        let fresh: Function =
            lua.load(include_str!("sandbox.lua")).set_name("=sandbox").call((expired, spend, log))?;
        let hook = budget.clone();
        lua.set_hook(HookTriggers::new().every_nth_instruction(HOOK_INTERVAL), move |_, _| {
            if hook.spend(u64::from(HOOK_INTERVAL)) { Ok(VmState::Continue) } else { Err(interrupted()) }
        })?;
        Ok(Vm { lua, budget, array_metatable, fresh, random, compiled: HashMap::new() })
    }

    fn compile(&mut self, script: &str) -> Result<Function, ScriptError> {
        if let Some(function) = self.compiled.get(script) {
            return Ok(function.clone());
        }
        if self.compiled.len() >= MAX_COMPILED {
            self.compiled.clear();
        }
        let function = self
            .lua
            .load(script)
            .set_name("=script")
            .set_mode(mlua::chunk::ChunkMode::Text)
            .into_function()
            .map_err(|error| ScriptError::Compile { message: plain(&error) })?;
        self.compiled.insert(script.into(), function.clone());
        Ok(function)
    }

    fn call<T>(
        &mut self,
        limits: ScriptLimits,
        script: &str,
        function: &'static str,
        arguments: &[&Value],
        read: impl FnOnce(&ScriptOutput<'_>) -> Result<T, String>,
    ) -> Result<T, ScriptError> {
        let chunk = self.compile(script)?;
        self.budget.reset(limits);
        self.random.reset();
        let result = self.run(&chunk, function, arguments);
        let results = result.map_err(|error| match error {
            _ if self.budget.expired() => ScriptError::Interrupted { function },
            RunError::Missing => ScriptError::Missing { function },
            RunError::Lua(error) if ran_out_of_memory(&error) => ScriptError::Memory { function },
            RunError::Lua(error) => ScriptError::Raised { function, message: plain(&error) },
        })?;
        let output = ScriptOutput {
            array_metatable: &self.array_metatable,
            budget: &self.budget,
            values: results.into_vec(),
        };
        read(&output).map_err(|message| match self.budget.expired() {
            true => ScriptError::Interrupted { function },
            false => ScriptError::Unusable { function, message },
        })
    }

    fn run(
        &self,
        chunk: &Function,
        function: &'static str,
        arguments: &[&Value],
    ) -> Result<MultiValue, RunError> {
        let globals: Table = self.fresh.call(())?;
        chunk.set_environment(globals.clone())?;
        chunk.call::<()>(())?;
        let LuaValue::Function(function) = globals.raw_get::<LuaValue>(function)? else {
            return Err(RunError::Missing);
        };
        let arguments: MultiValue = arguments
            .iter()
            .map(|argument| convert::to_lua(&self.lua, &self.array_metatable, argument))
            .collect::<mlua::Result<_>>()?;
        Ok(function.call(arguments)?)
    }

    /// Runs the garbage collector and returns the used bytes.
    fn collect_garbage(&self) -> usize {
        for _ in 0..2 {
            // This cannot fail: scripts cannot create finalizers.
            let _ = self.lua.gc_collect();
        }
        self.lua.used_memory()
    }
}

enum RunError {
    Missing,
    Lua(mlua::Error),
}

impl From<mlua::Error> for RunError {
    fn from(error: mlua::Error) -> Self {
        RunError::Lua(error)
    }
}

/// The results of a function, before conversion.
pub(super) struct ScriptOutput<'a> {
    array_metatable: &'a Table,
    budget: &'a Budget,
    values: Vec<LuaValue>,
}

impl ScriptOutput<'_> {
    pub(super) fn value(&self, at: usize) -> &LuaValue {
        self.values.get(at).unwrap_or(&LuaValue::Nil)
    }

    /// The result at index `at` as JSON; it must be a table. An empty table without a reference is an empty
    /// object.
    pub(super) fn table(&self, at: usize, references: &[&Value]) -> Result<Value, String> {
        let value = self.value(at);
        if !matches!(value, LuaValue::Table(_)) {
            return Err(format!("expected a table, got {}", value.type_name()));
        }
        let read = convert::from_lua(self.array_metatable, self.budget, value, references)
            .map_err(|error: ConvertError| error.to_string())?;
        Ok(read.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
    }
}

/// The error that stops a script.
pub(super) fn interrupted() -> mlua::Error {
    mlua::Error::runtime("interrupted: the script exceeded its budget")
}

fn ran_out_of_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } => ran_out_of_memory(cause),
        mlua::Error::RuntimeError(message) => message.contains("not enough memory"),
        _ => false,
    }
}

/// The message without the traceback, which shows only the sandbox.
fn plain(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } => return plain(cause),
        mlua::Error::RuntimeError(message) => message.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let text = text.split("\nstack traceback").next().unwrap_or_default().trim();
    let end = (0..=MAX_MESSAGE.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod bounds;
