//! Primary contexts, and which one is current on a thread.

use std::ffi::c_int;

use super::exports;
use crate::{
    abi::Code,
    pointers::Out,
    state::{current_context, pop_context, push_context, set_current_context},
    streams::PRIORITIES,
};

exports! {
    Init cuDevicePrimaryCtxRetain(call, context: Out<u64>, device: c_int) {
        let mut state = call.driver.lock();
        let device = state.device(device)?;
        context.put(state.retain(device)?)
    }

    Init cuDevicePrimaryCtxRelease_v2(call, device: c_int) {
        let mut state = call.driver.lock();
        let device = state.device(device)?;
        let outcome = state.release(device);
        call.driver.wake();
        outcome
    }

    Init cuDevicePrimaryCtxGetState(call, device: c_int, flags: Out<u32>, active: Out<c_int>) {
        let state = call.driver.lock();
        let device = state.device(device)?;
        flags.put(0)?;
        active.put(c_int::from(state.devices[device].context.is_some()))
    }

    Init cuCtxGetCurrent(_call, context: Out<u64>) {
        context.put(current_context().unwrap_or(0))
    }

    Init cuCtxSetCurrent(call, context: u64) {
        if context != 0 && !call.driver.lock().contexts.contains_key(&context) {
            return Err(Code::INVALID_CONTEXT);
        }
        set_current_context(Some(context).filter(|context| *context != 0));
        Ok(())
    }

    Init cuCtxPushCurrent_v2(call, context: u64) {
        if !call.driver.lock().contexts.contains_key(&context) {
            return Err(Code::INVALID_CONTEXT);
        }
        push_context(context);
        Ok(())
    }

    Init cuCtxPopCurrent_v2(_call, context: Out<u64>) {
        let popped = pop_context().ok_or(Code::INVALID_CONTEXT)?;
        context.put_if_wanted(popped);
        Ok(())
    }

    Context cuCtxGetDevice(call, device: Out<c_int>) {
        let index = call.driver.lock().usable(call.context)?;
        device.put(c_int::try_from(index).unwrap_or(c_int::MAX))
    }

    Context cuCtxSynchronize(call) {
        let context = call.context;
        call.driver.wait_until(context, |state| state.is_context_idle(context))
    }

    Context cuCtxGetStreamPriorityRange(_call, least: Out<c_int>, greatest: Out<c_int>) {
        least.put_if_wanted(PRIORITIES.0);
        greatest.put_if_wanted(PRIORITIES.1);
        Ok(())
    }
}
