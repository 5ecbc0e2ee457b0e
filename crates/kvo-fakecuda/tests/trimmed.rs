//! A driver that lacks symbols, under the real cudarc.

mod support;

use cudarc::driver::CudaContext;
use kvo_fakecuda::{FakeDriver, LoadError};

use self::support::raw;

const WITHOUT: [&str; 2] = ["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"];

#[test]
fn symbols_that_were_left_out_are_missing_and_the_rest_works() -> Result<(), Box<dyn std::error::Error>> {
    let unknown = FakeDriver::load_without(&["cuNothing"]);
    assert!(matches!(unknown, Err(LoadError::NoSymbol(name)) if name == "cuNothing"));
    let fake = FakeDriver::load_without(&WITHOUT)?.exclusive();
    assert!(matches!(FakeDriver::load(), Err(LoadError::LoadedOtherwise)));
    assert!(raw::symbol::<usize>("cuMemcpyAsync").is_some());
    for symbol in WITHOUT {
        assert!(raw::symbol::<usize>(symbol).is_none(), "{symbol} is there");
        fake.hide(symbol);
    }
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 12_080), Err((500, 1)));
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let sent = support::pattern(2, 10_000);
    let on_device = stream.clone_htod(&sent)?;
    let back = stream.clone_dtoh(&on_device)?;
    stream.synchronize()?;
    assert_eq!(back, sent);
    Ok(())
}
