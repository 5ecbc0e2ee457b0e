//! The names that the library exports, and since which version of CUDA a driver has them.

/// Every exported function of the driver, with the version that `cuGetProcAddress` gates it by.
///
/// A test names a function by its place here, so that no text crosses into the library.
pub(crate) const SYMBOLS: [(&str, i32); 79] = [
    ("cuInit", 2000),
    ("cuDriverGetVersion", 2020),
    ("cuGetErrorName", 6000),
    ("cuGetErrorString", 6000),
    ("cuGetProcAddress", 11_030),
    ("cuGetProcAddress_v2", 12_000),
    ("cuDeviceGet", 2000),
    ("cuDeviceGetCount", 2000),
    ("cuDeviceGetName", 2000),
    ("cuDeviceGetUuid", 9020),
    ("cuDeviceGetUuid_v2", 11_040),
    ("cuDeviceGetAttribute", 2000),
    ("cuDeviceGetPCIBusId", 4010),
    ("cuDeviceTotalMem_v2", 3020),
    ("cuDevicePrimaryCtxRetain", 7000),
    ("cuDevicePrimaryCtxRelease_v2", 11_000),
    ("cuDevicePrimaryCtxGetState", 7000),
    ("cuCtxGetCurrent", 4000),
    ("cuCtxSetCurrent", 4000),
    ("cuCtxPushCurrent_v2", 4000),
    ("cuCtxPopCurrent_v2", 4000),
    ("cuCtxGetDevice", 2000),
    ("cuCtxSynchronize", 2000),
    ("cuCtxGetStreamPriorityRange", 5050),
    ("cuStreamCreate", 2000),
    ("cuStreamCreateWithPriority", 5050),
    ("cuStreamDestroy_v2", 4000),
    ("cuStreamSynchronize", 2000),
    ("cuStreamQuery", 2000),
    ("cuStreamWaitEvent", 3020),
    ("cuStreamGetPriority", 5050),
    ("cuStreamGetFlags", 5050),
    ("cuStreamGetCtx", 9020),
    ("cuStreamBeginCapture_v2", 10_010),
    ("cuStreamEndCapture", 10_000),
    ("cuStreamIsCapturing", 10_000),
    ("cuThreadExchangeStreamCaptureMode", 10_010),
    ("cuEventCreate", 2000),
    ("cuEventDestroy_v2", 4000),
    ("cuEventRecord", 2000),
    ("cuEventQuery", 2000),
    ("cuEventSynchronize", 2000),
    ("cuEventElapsedTime", 2000),
    ("cuEventElapsedTime_v2", 12_080),
    ("cuMemAlloc_v2", 3020),
    ("cuMemFree_v2", 3020),
    ("cuMemGetInfo_v2", 3020),
    ("cuMemGetAddressRange_v2", 3020),
    ("cuMemHostAlloc", 2020),
    ("cuMemAllocHost_v2", 3020),
    ("cuMemFreeHost", 2000),
    ("cuMemHostRegister_v2", 6050),
    ("cuMemHostUnregister", 4000),
    ("cuMemHostGetDevicePointer_v2", 3020),
    ("cuMemHostGetFlags", 2030),
    ("cuPointerGetAttribute", 4000),
    ("cuPointerGetAttributes", 7000),
    ("cuMemcpyHtoD_v2", 3020),
    ("cuMemcpyDtoH_v2", 3020),
    ("cuMemcpyDtoD_v2", 3020),
    ("cuMemcpyHtoDAsync_v2", 3020),
    ("cuMemcpyDtoHAsync_v2", 3020),
    ("cuMemcpyDtoDAsync_v2", 3020),
    ("cuMemcpyAsync", 4000),
    ("cuMemcpy2DAsync_v2", 3020),
    ("cuMemcpyBatchAsync", 12_080),
    ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuMemsetD8_v2", 3020),
    ("cuMemsetD8Async", 3020),
    ("cuMemsetD32Async", 3020),
    ("cuLaunchHostFunc", 10_000),
    ("cuModuleLoadData", 2000),
    ("cuModuleLoadDataEx", 2010),
    ("cuModuleGetFunction", 2000),
    ("cuModuleUnload", 2000),
    ("cuFuncGetAttribute", 2020),
    ("cuFuncSetAttribute", 9000),
    ("cuFuncGetParamInfo", 12_040),
    ("cuLaunchKernel", 4000),
];

/// The place of a name among [`SYMBOLS`].
pub(crate) fn index_of(name: &str) -> Option<usize> {
    SYMBOLS.iter().position(|(symbol, _)| *symbol == name)
}

/// The name of the function that a program of version `version` means by `base`, as `cuGetProcAddress` answers: the
/// newest variant that it and the driver know.
#[cfg(kvo_fakecuda_armed)]
pub(crate) fn variant_of(base: &str, version: i32) -> Option<(usize, &'static str)> {
    let is_variant = |symbol: &str| {
        let rest = symbol.strip_prefix(base);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("_v"))
    };
    let known =
        SYMBOLS.iter().enumerate().filter(|(_, (symbol, since))| is_variant(symbol) && *since <= version);
    known.map(|(index, (symbol, _))| (index, *symbol)).max_by_key(|(_, symbol)| *symbol)
}
