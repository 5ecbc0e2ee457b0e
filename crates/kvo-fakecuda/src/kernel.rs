//! Modules and kernels. What executes PTX is behind [`Interpreter`], and chosen in one place, [`interpreter`].

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    abi::{Code, Done},
    copy::Side,
    memory::Span,
    ptx::Declarations,
    state::{Driver, State},
    tally,
};

/// Where a kernel's parameter lies in its block of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// What reads PTX.
pub(crate) trait Interpreter: Sync {
    /// # Errors
    /// [`Code::INVALID_PTX`] for what is no module.
    fn load(&self, ptx: &str) -> Result<Box<dyn Program>, Code>;
}

/// A module.
pub(crate) trait Program: Send {
    fn kernel(&self, name: &str) -> Option<Arc<dyn Kernel>>;
}

/// A kernel of a module.
pub(crate) trait Kernel: Send + Sync {
    /// Every parameter that the PTX declares, in its order.
    fn parameters(&self) -> &[Parameter];

    /// Runs all threads of a grid.
    ///
    /// # Errors
    /// A sticky code: what the device dies of.
    fn launch(&self, grid: [u32; 3], block: [u32; 3], parameters: &[u8], memory: &dyn KernelMemory) -> Done;
}

/// What a kernel reaches.
#[expect(dead_code, reason = "for what executes PTX")]
pub(crate) trait KernelMemory {
    /// # Errors
    /// [`Code::ILLEGAL_ADDRESS`].
    fn read(&self, address: u64, bytes: &mut [u8]) -> Done;

    /// # Errors
    /// [`Code::ILLEGAL_ADDRESS`].
    fn write(&self, address: u64, bytes: &[u8]) -> Done;
}

/// What executes the PTX of this driver.
fn interpreter() -> &'static dyn Interpreter {
    &Declarations
}

/// The modules and functions of all contexts.
#[derive(Default)]
pub(crate) struct Modules {
    /// With their contexts.
    modules: BTreeMap<u64, (u64, Box<dyn Program>)>,
    /// With their modules.
    functions: BTreeMap<u64, (u64, Arc<dyn Kernel>)>,
}

impl Modules {
    pub(crate) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Forgets the modules of a context, or all; says which.
    pub(crate) fn end(&mut self, context: Option<u64>) -> Vec<u64> {
        let is_gone = |of: u64| context.is_none_or(|context| of == context);
        let gone = self.modules.iter().filter(|(_, (of, _))| is_gone(*of));
        let gone: Vec<u64> = gone.map(|(handle, _)| *handle).collect();
        self.modules.retain(|handle, _| !gone.contains(handle));
        self.functions.retain(|_, (module, _)| !gone.contains(module));
        gone
    }
}

impl State {
    pub(crate) fn load_module(&mut self, context: u64, ptx: &str) -> Result<u64, Code> {
        let program = interpreter().load(ptx)?;
        let handle = self.new_handle();
        self.modules.modules.insert(handle, (context, program));
        Ok(handle)
    }

    pub(crate) fn unload_module(&mut self, handle: u64) -> Done {
        self.modules.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.modules.functions.retain(|_, (module, _)| *module != handle);
        Ok(())
    }

    pub(crate) fn function_of(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let (_, program) = self.modules.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let kernel = program.kernel(name).ok_or(Code::NOT_FOUND)?;
        let handle = self.new_handle();
        self.modules.functions.insert(handle, (module, kernel));
        Ok(handle)
    }

    pub(crate) fn kernel(&self, function: u64) -> Result<Arc<dyn Kernel>, Code> {
        let (_, kernel) = self.modules.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        Ok(Arc::clone(kernel))
    }
}

/// A kernel on a stream.
pub(crate) struct Launch {
    pub(crate) context: u64,
    pub(crate) function: u64,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) parameters: Vec<u8>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("grid", &self.grid).field("block", &self.block).finish_non_exhaustive()
    }
}

impl Launch {
    pub(crate) fn run(&self, driver: &'static Driver) -> Done {
        let memory = Reach { driver, context: self.context };
        driver.lock().tally.launches += 1;
        self.kernel.launch(self.grid, self.block, &self.parameters, &memory)
    }
}

/// What work of a context reaches, looked up at each access.
struct Reach {
    driver: &'static Driver,
    context: u64,
}

impl Reach {
    /// A kernel reaches all of an arena's pages that are in use. So a red zone is no fault, but a violation; what is
    /// neither that nor allocated is one, and so is host memory that no one registered.
    fn span(&self, address: u64, bytes: usize) -> Result<Span, Code> {
        let mut state = self.driver.lock();
        if let Ok(place) = state.place(self.context, address, bytes) {
            let is_reached = matches!(place.side, Side::Device(_) | Side::Pinned { is_device_address: true });
            return if is_reached { Ok(place.span) } else { Err(Code::ILLEGAL_ADDRESS) };
        }
        let (start, span) = state.red_zone_at(address, bytes).ok_or(Code::ILLEGAL_ADDRESS)?;
        state.tally.violation(tally::KERNEL_RED_ZONE, [start, address, bytes as u64, 0, 0]);
        Ok(span)
    }
}

impl KernelMemory for Reach {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Done {
        self.span(address, bytes.len())?.read(bytes);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Done {
        self.span(address, bytes.len())?.write(bytes);
        Ok(())
    }
}
