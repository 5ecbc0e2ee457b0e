//! Modules and kernels: what PTX declares, and how it runs.

use std::{collections::BTreeMap, fmt, sync::Arc};

use kvo_ptx::{BadAddress, Fault, Kernel, Memory, Module};

use crate::{
    abi::{Code, Done},
    copy::Side,
    memory::Span,
    state::{Driver, State},
    tally,
};

/// The newest PTX that a driver reads, by its version: since which it is that.
const PTX_OF_DRIVER: [(i32, (u32, u32)); 10] = [
    (11_080, (7, 8)),
    (12_000, (8, 0)),
    (12_010, (8, 1)),
    (12_020, (8, 2)),
    (12_030, (8, 3)),
    (12_040, (8, 4)),
    (12_050, (8, 5)),
    (12_080, (8, 7)),
    (12_090, (8, 8)),
    (13_000, (9, 0)),
];

/// The modules and functions of all contexts.
#[derive(Default)]
pub(crate) struct Modules {
    /// With their contexts.
    modules: BTreeMap<u64, (u64, Module)>,
    /// With their modules.
    functions: BTreeMap<u64, (u64, Arc<Kernel>)>,
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
        let module = Module::parse(ptx).map_err(|error| {
            // A real driver has a log for this.
            eprintln!("kvo-fakecuda: the PTX is refused: {error}");
            Code::INVALID_PTX
        })?;
        let known = PTX_OF_DRIVER.iter().rev().find(|(since, _)| *since <= self.config.driver_version);
        if known.is_none_or(|(_, newest)| module.version() > *newest) {
            return Err(Code::UNSUPPORTED_PTX_VERSION);
        }
        let handle = self.new_handle();
        self.modules.modules.insert(handle, (context, module));
        Ok(handle)
    }

    pub(crate) fn unload_module(&mut self, handle: u64) -> Done {
        self.modules.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.modules.functions.retain(|_, (module, _)| *module != handle);
        Ok(())
    }

    pub(crate) fn function_of(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let (_, program) = self.modules.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let kernel = Arc::new(program.kernel(name).ok_or(Code::NOT_FOUND)?.clone());
        let handle = self.new_handle();
        self.modules.functions.insert(handle, (module, kernel));
        Ok(handle)
    }

    pub(crate) fn kernel(&self, function: u64) -> Result<Arc<Kernel>, Code> {
        let (_, kernel) = self.modules.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        Ok(Arc::clone(kernel))
    }
}

/// A kernel on a stream.
pub(crate) struct Launch {
    pub(crate) context: u64,
    pub(crate) function: u64,
    pub(crate) kernel: Arc<Kernel>,
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
        let launched = self.kernel.launch(self.grid, self.block, &self.parameters, &memory);
        launched.map(|_| ()).map_err(|fault| {
            eprintln!("kvo-fakecuda: the kernel {} ends: {fault}", self.kernel.name());
            code_of(&fault)
        })
    }
}

/// What a device dies of.
fn code_of(fault: &Fault) -> Code {
    match fault {
        Fault::BadAddress { .. } => Code::ILLEGAL_ADDRESS,
        Fault::Misaligned { .. } => Code::MISALIGNED_ADDRESS,
        Fault::TooLong { .. } => Code::LAUNCH_TIMEOUT,
        _ => Code::LAUNCH_FAILED,
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
    fn span(&self, address: u64, bytes: usize) -> Result<Span, BadAddress> {
        let mut state = self.driver.lock();
        if let Ok(place) = state.place(self.context, address, bytes) {
            let is_reached = matches!(place.side, Side::Device(_) | Side::Pinned { is_device_address: true });
            return if is_reached { Ok(place.span) } else { Err(BadAddress) };
        }
        let (start, span) = state.red_zone_at(address, bytes).ok_or(BadAddress)?;
        state.tally.violation(tally::KERNEL_RED_ZONE, [start, address, bytes as u64, 0, 0]);
        Ok(span)
    }
}

impl Memory for Reach {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
        self.span(address, out.len())?.read(out);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BadAddress> {
        self.span(address, bytes.len())?.write(bytes);
        Ok(())
    }
}
