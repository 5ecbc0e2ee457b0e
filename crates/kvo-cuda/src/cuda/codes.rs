//! The driver's codes in kvo's own words. Asking the driver for its words is a call, and a dead device is not called.

use std::fmt;

use self::ErrorClass::{Refused, Sticky, Unavailable};

/// A code that the CUDA driver returned. The driver may be newer than this table: any number is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverCode(pub u32);

/// What a code means for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The call was refused, and nothing else happened.
    Refused,
    /// There was too little of something, or it is not allowed here: another way may work.
    Unavailable,
    /// The device's context is broken. Every later call of it fails, until the process ends.
    Sticky,
}

impl DriverCode {
    /// No error.
    pub const SUCCESS: Self = Self(0);
    /// What the driver says of an event or a stream that the device has not reached the end of.
    pub const NOT_READY: Self = Self(600);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const STUB_LIBRARY: Self = Self(34);

    /// The name in the driver's header without its prefix, if it was known when this was written.
    pub fn name(self) -> Option<&'static str> {
        known(self.0).map(|(_, name, _, _)| *name)
    }

    /// What it means, in a few words.
    pub fn meaning(self) -> &'static str {
        known(self.0).map_or("a code that this version does not know", |(_, _, _, meaning)| *meaning)
    }

    /// What it means for the device. A code that is not known is taken for the worst: to go on with a broken context
    /// would be to wait for copies that never end.
    pub fn class(self) -> ErrorClass {
        known(self.0).map_or(Sticky, |(_, _, class, _)| *class)
    }

    /// Whether every later call of the device's context fails.
    pub fn is_sticky(self) -> bool {
        self.class() == Sticky
    }
}

impl fmt::Display for DriverCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.0, self.name().unwrap_or("(unknown)"), self.meaning())
    }
}

type Known = (u32, &'static str, ErrorClass, &'static str);

fn known(code: u32) -> Option<&'static Known> {
    KNOWN.binary_search_by_key(&code, |(known, _, _, _)| *known).ok().map(|index| &KNOWN[index])
}

/// The codes of the driver's header of CUDA 13.4, ascending, with its names.
const KNOWN: [Known; 106] = [
    (0, "SUCCESS", Refused, "no error"),
    (1, "INVALID_VALUE", Refused, "an argument is out of range"),
    (2, "OUT_OF_MEMORY", Unavailable, "there is too little memory"),
    (3, "NOT_INITIALIZED", Sticky, "the driver was not initialised"),
    (4, "DEINITIALIZED", Sticky, "the driver is being shut down"),
    (5, "PROFILER_DISABLED", Refused, "the profiler is not there"),
    (6, "PROFILER_NOT_INITIALIZED", Refused, "the profiler was not initialised"),
    (7, "PROFILER_ALREADY_STARTED", Refused, "the profiler runs already"),
    (8, "PROFILER_ALREADY_STOPPED", Refused, "the profiler does not run"),
    (34, "STUB_LIBRARY", Unavailable, "the library is a stub to link with, not a driver"),
    (36, "CALL_REQUIRES_NEWER_DRIVER", Unavailable, "the kernel module is too old for the call"),
    (46, "DEVICE_UNAVAILABLE", Unavailable, "another process has the device to itself"),
    (47, "MULTICAST_RESOURCE_FULL", Unavailable, "the fabric has no room for another multicast"),
    (100, "NO_DEVICE", Unavailable, "there is no device"),
    (101, "INVALID_DEVICE", Refused, "there is no such device"),
    (102, "DEVICE_NOT_LICENSED", Unavailable, "the device has no licence"),
    (200, "INVALID_IMAGE", Refused, "the kernel's image is not valid"),
    (201, "INVALID_CONTEXT", Refused, "no context, or one that is gone, is current"),
    (202, "CONTEXT_ALREADY_CURRENT", Refused, "the context is current already"),
    (205, "MAP_FAILED", Unavailable, "memory could not be mapped"),
    (206, "UNMAP_FAILED", Refused, "memory could not be unmapped"),
    (207, "ARRAY_IS_MAPPED", Refused, "the array is mapped"),
    (208, "ALREADY_MAPPED", Refused, "the memory is mapped already"),
    (209, "NO_BINARY_FOR_GPU", Unavailable, "the image has no code for this device"),
    (210, "ALREADY_ACQUIRED", Refused, "the resource is taken already"),
    (211, "NOT_MAPPED", Refused, "the memory is not mapped"),
    (212, "NOT_MAPPED_AS_ARRAY", Refused, "the resource is not mapped as an array"),
    (213, "NOT_MAPPED_AS_POINTER", Refused, "the resource is not mapped as memory"),
    (214, "ECC_UNCORRECTABLE", Sticky, "memory of the device lost bits that cannot be restored"),
    (215, "UNSUPPORTED_LIMIT", Unavailable, "the device has no such limit"),
    (216, "CONTEXT_ALREADY_IN_USE", Refused, "the context is bound to another thread"),
    (217, "PEER_ACCESS_UNSUPPORTED", Unavailable, "the devices cannot reach each other"),
    (218, "INVALID_PTX", Unavailable, "the driver could not compile the kernel"),
    (219, "INVALID_GRAPHICS_CONTEXT", Refused, "there is no such graphics context"),
    (220, "NVLINK_UNCORRECTABLE", Sticky, "an NVLink failed"),
    (221, "JIT_COMPILER_NOT_FOUND", Unavailable, "the driver's compiler is missing"),
    (
        222,
        "UNSUPPORTED_PTX_VERSION",
        Unavailable,
        "the kernel is in a language that is too new for the driver",
    ),
    (223, "JIT_COMPILATION_DISABLED", Unavailable, "the driver may not compile"),
    (224, "UNSUPPORTED_EXEC_AFFINITY", Unavailable, "the device cannot give out a part of itself"),
    (
        225,
        "UNSUPPORTED_DEVSIDE_SYNC",
        Unavailable,
        "the kernel waits for others on the device, which it may not",
    ),
    (226, "CONTAINED", Sticky, "the device contained a fault, and the context with it"),
    (227, "INSUFFICIENT_LOADER_VERSION", Unavailable, "the driver's parts are of different versions"),
    (300, "INVALID_SOURCE", Refused, "the source of a kernel is not valid"),
    (301, "FILE_NOT_FOUND", Unavailable, "a file was not found"),
    (302, "SHARED_OBJECT_SYMBOL_NOT_FOUND", Unavailable, "a library lacks a symbol"),
    (303, "SHARED_OBJECT_INIT_FAILED", Unavailable, "a library did not start"),
    (304, "OPERATING_SYSTEM", Unavailable, "a call of the operating system failed"),
    (400, "INVALID_HANDLE", Refused, "there is no such stream or event"),
    (401, "ILLEGAL_STATE", Refused, "something is not in the state for the call"),
    (402, "LOSSY_QUERY", Refused, "the answer would leave something out"),
    (500, "NOT_FOUND", Unavailable, "there is no such name"),
    (600, "NOT_READY", Refused, "the device is not there yet"),
    (700, "ILLEGAL_ADDRESS", Sticky, "the device touched an address that is not mapped"),
    (
        701,
        "LAUNCH_OUT_OF_RESOURCES",
        Unavailable,
        "the kernel needs more registers or threads than there are",
    ),
    (702, "LAUNCH_TIMEOUT", Sticky, "a kernel ran longer than is allowed"),
    (703, "LAUNCH_INCOMPATIBLE_TEXTURING", Refused, "the kernel uses textures in another mode"),
    (704, "PEER_ACCESS_ALREADY_ENABLED", Refused, "the devices reach each other already"),
    (705, "PEER_ACCESS_NOT_ENABLED", Refused, "the devices were not made to reach each other"),
    (708, "PRIMARY_CONTEXT_ACTIVE", Refused, "the primary context is in use already"),
    (709, "CONTEXT_IS_DESTROYED", Sticky, "the context was destroyed"),
    (710, "ASSERT", Sticky, "a kernel failed an assertion"),
    (711, "TOO_MANY_PEERS", Unavailable, "the device reaches too many others"),
    (712, "HOST_MEMORY_ALREADY_REGISTERED", Unavailable, "the host memory is registered already"),
    (713, "HOST_MEMORY_NOT_REGISTERED", Refused, "the host memory is not registered"),
    (714, "HARDWARE_STACK_ERROR", Sticky, "a kernel's stack was broken"),
    (715, "ILLEGAL_INSTRUCTION", Sticky, "a kernel has an instruction that does not exist"),
    (716, "MISALIGNED_ADDRESS", Sticky, "a kernel used an address that is not aligned"),
    (717, "INVALID_ADDRESS_SPACE", Sticky, "a kernel used an address of another space"),
    (718, "INVALID_PC", Sticky, "a kernel jumped out of its code"),
    (719, "LAUNCH_FAILED", Sticky, "a kernel failed"),
    (720, "COOPERATIVE_LAUNCH_TOO_LARGE", Unavailable, "the launch has more CTAs than run at a time"),
    (721, "TENSOR_MEMORY_LEAK", Sticky, "a kernel left tensor memory behind"),
    (800, "NOT_PERMITTED", Unavailable, "it is not permitted"),
    (801, "NOT_SUPPORTED", Unavailable, "it is not supported here"),
    (802, "SYSTEM_NOT_READY", Unavailable, "the machine's fabric is not ready"),
    (803, "SYSTEM_DRIVER_MISMATCH", Unavailable, "the library and the kernel module do not fit"),
    (
        804,
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        Unavailable,
        "the compatibility library does not work with this device",
    ),
    (805, "MPS_CONNECTION_FAILED", Unavailable, "the MPS server could not be reached"),
    (806, "MPS_RPC_FAILURE", Sticky, "the MPS server was lost"),
    (807, "MPS_SERVER_NOT_READY", Unavailable, "the MPS server is not ready"),
    (808, "MPS_MAX_CLIENTS_REACHED", Unavailable, "the MPS server has too many clients"),
    (809, "MPS_MAX_CONNECTIONS_REACHED", Unavailable, "the MPS server has too many connections"),
    (810, "MPS_CLIENT_TERMINATED", Sticky, "the MPS server ended this client"),
    (811, "CDP_NOT_SUPPORTED", Unavailable, "the device cannot launch kernels of its own"),
    (812, "CDP_VERSION_MISMATCH", Unavailable, "kernels that launch others are of different versions"),
    (900, "STREAM_CAPTURE_UNSUPPORTED", Refused, "the stream is being captured into a graph"),
    (901, "STREAM_CAPTURE_INVALIDATED", Refused, "the stream's capture was spoilt"),
    (902, "STREAM_CAPTURE_MERGE", Refused, "the call would make one of two captures"),
    (903, "STREAM_CAPTURE_UNMATCHED", Refused, "the capture did not begin on this stream"),
    (904, "STREAM_CAPTURE_UNJOINED", Refused, "the capture has a stream that its first does not wait for"),
    (905, "STREAM_CAPTURE_ISOLATION", Refused, "the call would tie a capture to what is outside of it"),
    (906, "STREAM_CAPTURE_IMPLICIT", Refused, "the call would tie a capture to the default stream"),
    (907, "CAPTURED_EVENT", Refused, "the event is part of a capture"),
    (908, "STREAM_CAPTURE_WRONG_THREAD", Refused, "another thread captures the stream"),
    (909, "TIMEOUT", Refused, "it took too long"),
    (910, "GRAPH_EXEC_UPDATE_FAILURE", Refused, "the graph is too different from the one before"),
    (911, "EXTERNAL_DEVICE", Sticky, "a device that this one waited for failed"),
    (912, "INVALID_CLUSTER_SIZE", Refused, "the cluster does not fit the kernel"),
    (913, "FUNCTION_NOT_LOADED", Refused, "the kernel is not loaded yet"),
    (914, "INVALID_RESOURCE_TYPE", Refused, "the resource is of a kind that is not for the call"),
    (915, "INVALID_RESOURCE_CONFIGURATION", Refused, "the resources do not fit together"),
    (916, "KEY_ROTATION", Unavailable, "the device changes its keys"),
    (917, "STREAM_DETACHED", Refused, "the part of the device that the stream is for is gone"),
    (918, "GRAPH_RECAPTURE_FAILURE", Refused, "the graph could not be captured again"),
    (919, "FABRIC_NOT_READY", Unavailable, "the fabric is not ready"),
    (999, "UNKNOWN", Sticky, "the driver does not know"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ascends_so_that_it_can_be_searched() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (code, name, class, _) in KNOWN {
            assert_eq!((DriverCode(code).name(), DriverCode(code).class()), (Some(name), class));
        }
    }

    #[test]
    fn errors_that_break_a_context_are_sticky_and_a_launch_without_resources_is_not() {
        for code in [214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 911, 999] {
            assert!(DriverCode(code).is_sticky(), "{code}");
        }
        for code in [0, 1, 2, 100, 400, 600, 701, 712, 713, 720, 800, 801] {
            assert!(!DriverCode(code).is_sticky(), "{code}");
        }
        for code in (900..=908).chain([910]) {
            assert_eq!(
                DriverCode(code).class(),
                Refused,
                "{code} is of a capture or a graph, not of the context"
            );
        }
    }

    /// Every number that the driver's header of CUDA 13.4 gives a name.
    #[test]
    fn no_code_of_the_header_is_unknown() {
        let few = [36, 46, 47, 100, 101, 102, 400, 401, 402, 500, 600, 917, 918, 919, 999];
        let runs =
            [0..=8, 34..=34, 200..=202, 205..=227, 300..=304, 700..=705, 708..=721, 800..=812, 900..=916];
        let mut header: Vec<u32> = runs.into_iter().flatten().chain(few).collect();
        header.sort_unstable();
        let known: Vec<u32> = KNOWN.iter().map(|(code, _, _, _)| *code).collect();
        assert_eq!(known, header);
    }

    #[test]
    fn a_code_of_a_newer_driver_has_words_and_is_taken_for_the_worst() {
        let code = DriverCode(4_000_000_000);
        assert_eq!(code.to_string(), "4000000000 (unknown): a code that this version does not know");
        assert!(code.is_sticky());
        let known = DriverCode(700).to_string();
        assert_eq!(known, "700 ILLEGAL_ADDRESS: the device touched an address that is not mapped");
    }

    /// The names are those of the bindings, for the codes that every version of them has.
    #[test]
    fn names_are_those_of_the_bindings() {
        use cudarc::driver::sys::CUresult as Bound;
        let bound = [
            Bound::CUDA_ERROR_INVALID_VALUE,
            Bound::CUDA_ERROR_OUT_OF_MEMORY,
            Bound::CUDA_ERROR_ECC_UNCORRECTABLE,
            Bound::CUDA_ERROR_ILLEGAL_ADDRESS,
            Bound::CUDA_ERROR_LAUNCH_TIMEOUT,
            Bound::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            Bound::CUDA_ERROR_NOT_READY,
            Bound::CUDA_ERROR_UNKNOWN,
        ];
        for code in bound {
            let name = DriverCode(code as u32).name().expect("a code of every version is known");
            assert_eq!(format!("{code:?}"), format!("CUDA_ERROR_{name}"));
        }
    }
}
