//! Runs Lua that others wrote, without trusting it.
//!
//! A script gets three limits: instructions, wall-clock time and memory. The first makes runs repeatable, the
//! second holds on a busy machine, the third stops a string that doubles. None can be caught away with `pcall`.
//! A VM costs 43 µs to make and 32 KiB to keep, so VMs are pooled; one that hit a limit is thrown away.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value as LuaValue, VmState};
use parking_lot::Mutex;
use serde_json::Value;

use super::convert::{self, ConvertError};
use super::library;

/// Instructions between two looks at the budget; 1,000 cost about 10 µs, a look 0.1 µs.
const STRIDE: u32 = 1_000;
/// Idle VMs kept; more calls at once than this make VMs that are dropped afterwards.
const KEPT: usize = 16;
/// Scripts compiled in one VM before all are forgotten: changed customizations must not pile up.
const COMPILED: usize = 256;

/// What one call may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// VM instructions; 20 million are about 0.2 s.
    pub instructions: u64,
    /// Wall-clock time.
    pub time: Duration,
    /// Bytes of Lua memory. Two objects of the largest size that Kubernetes takes fit in the default of 64 MiB.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { instructions: 20_000_000, time: Duration::from_secs(1), memory: 64 << 20 }
    }
}

/// Why a script gave no answer.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ScriptError {
    /// The text is not Lua.
    #[error("failed to compile the script: {message}")]
    Compile {
        /// What the compiler said.
        message: String,
    },
    /// The script lacks the function that the operation calls.
    #[error("the script defines no function {function}")]
    Missing {
        /// The name that was looked for.
        function: &'static str,
    },
    /// The script raised an error.
    #[error("{function} failed: {message}")]
    Raised {
        /// The function that was called.
        function: &'static str,
        /// What it raised.
        message: String,
    },
    /// The script ran into its budget of instructions or time.
    #[error("{function} was stopped: it ran longer than a script may (endless loop?)")]
    Interrupted {
        /// The function that was called.
        function: &'static str,
    },
    /// The script ran into its budget of memory.
    #[error("{function} was stopped: it used more memory than a script may")]
    Memory {
        /// The function that was called.
        function: &'static str,
    },
    /// The answer has the wrong type, or no form in JSON.
    #[error("{function} returned what cannot be used: {message}")]
    Unusable {
        /// The function that was called.
        function: &'static str,
        /// What is wrong with the answer.
        message: String,
    },
}

/// The clock that scripts see through `os.time` and `os.date`.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A pool of sandboxed Lua VMs.
pub struct Host {
    limits: Limits,
    clock: Clock,
    idle: Mutex<Vec<Vm>>,
}

impl Host {
    /// A host whose scripts see `clock`.
    pub fn new(limits: Limits, clock: Clock) -> Self {
        Host { limits, clock, idle: Mutex::new(Vec::new()) }
    }

    /// Checks that a script compiles, without running it.
    pub fn check(&self, script: &str) -> Result<(), ScriptError> {
        let mut vm = self.take(script)?;
        let outcome = vm.compile(script).map(drop);
        self.give_back(vm);
        outcome
    }

    /// Bytes that the idle VMs hold, after a collection.
    pub fn memory(&self) -> usize {
        let idle = self.idle.lock();
        idle.iter().map(Vm::settle).sum()
    }

    /// Calls `function` of `script` and reads its first `N` results with the eyes of `read`.
    pub(super) fn call<T>(
        &self,
        script: &str,
        function: &'static str,
        arguments: &[&Value],
        read: impl FnOnce(&Answer<'_>) -> Result<T, String>,
    ) -> Result<T, ScriptError> {
        let mut vm = self.take(script)?;
        let outcome = vm.call(self.limits, script, function, arguments, read);
        match &outcome {
            Err(ScriptError::Interrupted { .. } | ScriptError::Memory { .. }) => drop(vm),
            _ => self.give_back(vm),
        }
        outcome
    }

    /// An idle VM, by preference one that has already compiled the script.
    fn take(&self, script: &str) -> Result<Vm, ScriptError> {
        let mut idle = self.idle.lock();
        let position = idle.iter().rposition(|vm| vm.compiled.contains_key(script));
        if let Some(vm) = position.map(|at| idle.swap_remove(at)).or_else(|| idle.pop()) {
            return Ok(vm);
        }
        drop(idle);
        Vm::new(self.limits, self.clock.clone())
            .map_err(|error| ScriptError::Compile { message: format!("failed to prepare a Lua VM: {error}") })
    }

    fn give_back(&self, vm: Vm) {
        if vm.lua.used_memory() > self.limits.memory / 8 {
            vm.settle();
        }
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(vm);
        }
    }
}

/// What one call has left, shared between the VM's hook and the host's functions.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicU64,
    expired: AtomicBool,
    deadline: Mutex<Instant>,
}

impl Budget {
    fn reset(&self, limits: Limits) {
        self.left.store(limits.instructions, Ordering::Relaxed);
        self.expired.store(false, Ordering::Relaxed);
        *self.deadline.lock() = Instant::now() + limits.time;
    }

    /// Takes `amount` from the budget; false once it is used up.
    pub(super) fn spend(&self, amount: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(amount), Ordering::Relaxed);
        if left <= amount || Instant::now() > *self.deadline.lock() {
            self.expired.store(true, Ordering::Relaxed);
        }
        !self.expired()
    }

    /// Steps that a pattern match may take.
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
    mark: Table,
    /// Makes the globals of one call.
    fresh: Function,
    /// Start value of `math.random`, the same for every call.
    random: library::Random,
    compiled: HashMap<Box<str>, Function>,
}

impl Vm {
    fn new(limits: Limits, clock: Clock) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new())?;
        lua.set_memory_limit(limits.memory)?;
        let budget = Arc::new(Budget {
            left: AtomicU64::new(limits.instructions),
            expired: AtomicBool::new(false),
            deadline: Mutex::new(Instant::now() + limits.time),
        });
        let mark = lua.create_table()?;
        let random = library::install(&lua, &mark, &budget, clock)?;
        let expired = {
            let budget = budget.clone();
            lua.create_function(move |_, ()| Ok(budget.expired()))?
        };
        let refuse = lua.create_function(|lua, name: String| {
            lua.create_function(move |_, _: MultiValue| -> mlua::Result<()> {
                Err(mlua::Error::runtime(format!("{name} is not available to interpreter scripts")))
            })
        })?;
        let fresh: Function =
            lua.load(include_str!("sandbox.lua")).set_name("=sandbox").call((expired, refuse))?;
        let hook = budget.clone();
        lua.set_hook(HookTriggers::new().every_nth_instruction(STRIDE), move |_, _| {
            if hook.spend(u64::from(STRIDE)) {
                Ok(VmState::Continue)
            } else {
                Err(mlua::Error::runtime("interrupted: the script used up its budget"))
            }
        })?;
        Ok(Vm { lua, budget, mark, fresh, random, compiled: HashMap::new() })
    }

    fn compile(&mut self, script: &str) -> Result<Function, ScriptError> {
        if let Some(function) = self.compiled.get(script) {
            return Ok(function.clone());
        }
        if self.compiled.len() >= COMPILED {
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
        limits: Limits,
        script: &str,
        function: &'static str,
        arguments: &[&Value],
        read: impl FnOnce(&Answer<'_>) -> Result<T, String>,
    ) -> Result<T, ScriptError> {
        let chunk = self.compile(script)?;
        self.budget.reset(limits);
        self.random.reset();
        let outcome = self.run(&chunk, function, arguments);
        let results = outcome.map_err(|error| match error {
            _ if self.budget.expired() => ScriptError::Interrupted { function },
            RunError::Missing => ScriptError::Missing { function },
            RunError::Lua(error) if ran_out_of_memory(&error) => ScriptError::Memory { function },
            RunError::Lua(error) => ScriptError::Raised { function, message: plain(&error) },
        })?;
        let answer = Answer { mark: &self.mark, values: results.into_vec() };
        read(&answer).map_err(|message| ScriptError::Unusable { function, message })
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
            .map(|argument| convert::to_lua(&self.lua, &self.mark, argument))
            .collect::<mlua::Result<_>>()?;
        Ok(function.call(arguments)?)
    }

    /// Collects garbage; the bytes that remain.
    fn settle(&self) -> usize {
        for _ in 0..2 {
            // Collecting cannot fail here: no finalizer of a script exists that could raise.
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

/// What a function returned, not yet read.
pub(super) struct Answer<'a> {
    mark: &'a Table,
    values: Vec<LuaValue>,
}

impl Answer<'_> {
    pub(super) fn value(&self, at: usize) -> &LuaValue {
        self.values.get(at).unwrap_or(&LuaValue::Nil)
    }

    /// The result at `at` as JSON; it must be a table. An empty one that nobody knows is an empty object.
    pub(super) fn table(&self, at: usize, references: &[&Value]) -> Result<Value, String> {
        let value = self.value(at);
        if !matches!(value, LuaValue::Table(_)) {
            return Err(format!("a table is wanted, {} was given", value.type_name()));
        }
        let read = convert::from_lua(self.mark, value, references)
            .map_err(|error: ConvertError| error.to_string())?;
        Ok(read.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
    }
}

fn ran_out_of_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } => ran_out_of_memory(cause),
        mlua::Error::RuntimeError(message) => message.contains("not enough memory"),
        _ => false,
    }
}

/// The message alone: a traceback of the sandbox helps nobody.
fn plain(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } => return plain(cause),
        mlua::Error::RuntimeError(message) => message.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    text.split("\nstack traceback").next().unwrap_or_default().trim().to_owned()
}
