//! Kernels on the fake driver, from PTX, under the real cudarc.

mod support;

use kvo_fakecuda::Violation;

use self::support::{bound, fake, pattern, raw};

const KIB: usize = 1024;

const MISALIGNED: u32 = 716;

/// Each thread copies eight bytes. The last parameter has no use but to be read.
const COPY: &str = "
.version 8.1
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 at, .param .u64 last)
.maxntid 256, 1, 1
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u64 %rd3, [at];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd4, %r1, 8;
    add.s64 %rd4, %rd4, %rd3;
    add.s64 %rd5, %rd2, %rd4;
    add.s64 %rd6, %rd1, %rd4;
    ld.global.u64 %rd7, [%rd5];
    st.global.u64 [%rd6], %rd7;
    ret;
}
";

fn copy_kernel() -> u64 {
    let module = raw::load_module(COPY).expect("it is PTX");
    raw::function(module, "copy").expect("it is there")
}

#[test]
fn a_kernel_runs_on_its_stream_with_every_parameter_of_its_ptx() {
    let cuda = bound();
    let (device, host, stream) = (cuda.alloc(KIB), cuda.host(4 * KIB), cuda.stream());
    cuda.put_pattern(device, KIB, 4);
    let function = copy_kernel();
    raw::launch(function, 100, &mut [host, device, 64, 0], stream).expect("launch");
    raw::stream_synchronize(stream).expect("synchronize");
    let mut expected = vec![0; KIB];
    expected[64..864].copy_from_slice(&pattern(4, KIB)[64..864]);
    assert!(raw::see(host, KIB) == expected);
    assert_eq!(cuda.fake.counts().launches, 1);
    // A driver reads four pointers, as many as the PTX says: the fourth is null here.
    assert_eq!(raw::launch_with_nulls(function, &mut [host, device, 64], 1, stream), Err(1));
}

#[test]
fn a_kernel_that_leaves_its_memory_kills_the_device_or_is_written_down() {
    let cuda = bound();
    let (device, stream) = (cuda.alloc(KIB), cuda.stream());
    let pageable = raw::host(KIB).as_mut_ptr() as u64;
    let function = copy_kernel();
    raw::launch(function, 1, &mut [device, device, 1024, 0], stream).expect("launch");
    raw::stream_synchronize(stream).expect("near enough not to fault");
    let near = Violation::KernelInRedZone { allocation: device, address: device + 1024, bytes: 8 };
    assert_eq!(cuda.fake.violations()[..2], [near, near], "read and written");
    raw::launch(function, 1, &mut [device, pageable, 0, 0], stream).expect("launch");
    assert_eq!(raw::stream_synchronize(stream), Err(700), "memory that is not registered");
}

#[test]
fn a_crooked_access_kills_the_device() {
    let cuda = bound();
    let (device, stream) = (cuda.alloc(KIB), cuda.stream());
    raw::launch(copy_kernel(), 1, &mut [device, device, 4, 0], stream).expect("launch");
    assert_eq!(raw::stream_synchronize(stream), Err(MISALIGNED));
    assert_eq!(raw::alloc(1), Err(MISALIGNED));
}

#[test]
fn modules_are_loaded_and_unloaded() {
    let cuda = bound();
    assert_eq!(raw::load_module("no PTX at all"), Err(218));
    let module = raw::load_module(COPY).expect("it is PTX");
    assert_eq!(raw::function(module, "move"), Err(500));
    let function = raw::function(module, "copy").expect("it is there");
    assert_eq!(raw::launch(function, 2048, &mut [0; 4], cuda.stream()), Err(1), "no device has so many");
    assert_eq!(raw::launch(function, 512, &mut [0; 4], cuda.stream()), Err(701), "more than it was made for");
    assert_eq!(cuda.fake.counts().modules, 1);
    raw::unload(module).expect("unload");
    assert_eq!(raw::launch(function, 32, &mut [0; 4], cuda.stream()), Err(400));
    assert_eq!(raw::unload(module), Err(400));
}

#[test]
fn a_driver_refuses_ptx_that_is_newer_than_itself() {
    let fake = fake();
    fake.set_driver_version(12_000);
    raw::init().expect("init");
    raw::set_current(raw::retain(0).expect("retain")).expect("bind");
    assert_eq!(raw::load_module(COPY), Err(222));
    fake.set_driver_version(12_010);
    raw::load_module(COPY).expect("of its own version");
}
