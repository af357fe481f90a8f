//! The gauges, as nvml-wrapper reads them.

use super::*;
use crate::testing::test_memory;

#[test]
fn gauges_are_read_as_nvml_wrapper_reads_them() {
    let (mut device, mut same, mut number, mut energy) = (0usize, 0usize, 0u32, 0u64);
    // SAFETY: room for all.
    unsafe {
        assert_eq!(nvmlInit_v2(), SUCCESS);
        assert_eq!(nvmlDeviceGetCount_v2(&raw mut number), SUCCESS);
        assert_eq!(number as usize, config().devices.len());
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(number, &raw mut device), INVALID_ARGUMENT);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), SUCCESS);
        let mut text = [0 as c_char; 96];
        assert_eq!(nvmlDeviceGetUUID(device, text.as_mut_ptr(), 40), INSUFFICIENT_SIZE);
        assert_eq!(nvmlDeviceGetUUID(device, text.as_mut_ptr(), 96), SUCCESS);
        assert_eq!(CStr::from_ptr(text.as_ptr()).count_bytes(), 40);
        assert_eq!(nvmlDeviceGetHandleByUUID(text.as_ptr(), &raw mut same), SUCCESS);
        assert_eq!(same, device);
        assert_eq!(nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), &raw mut same), NOT_FOUND);
        assert_eq!(nvmlDeviceGetHandleByPciBusId_v2(c"0000:01:00.0".as_ptr(), &raw mut same), SUCCESS);
        assert_eq!(nvmlDeviceGetName(device, text.as_mut_ptr(), 96), SUCCESS);
        test_memory(1000);
        let mut info = MemoryV2 { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &raw mut info), ARGUMENT_VERSION_MISMATCH);
        info.version = 0x200_0028;
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &raw mut info), SUCCESS);
        assert!(info.used >= 1000 && info.used + info.free == info.total);
        assert_eq!(nvmlDeviceGetPowerUsage(device, &raw mut number), SUCCESS);
        assert_eq!(number, 420_000);
        assert_eq!(nvmlDeviceGetClockInfo(device, 1, &raw mut number), SUCCESS);
        assert_eq!(number, SM_MHZ);
        assert_eq!(nvmlDeviceGetClockInfo(device, 4, &raw mut number), INVALID_ARGUMENT);
        assert_eq!(nvmlDeviceGetTotalEnergyConsumption(device, &raw mut energy), SUCCESS);
        let first = energy;
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(nvmlDeviceGetTotalEnergyConsumption(device, &raw mut energy), SUCCESS);
        assert!(energy > first);
        let mut rates = Utilization { gpu: 0, memory: 0 };
        assert_eq!(nvmlDeviceGetUtilizationRates(device, &raw mut rates), SUCCESS);
        assert!(rates.gpu > 0 && rates.memory <= 100);
        assert_eq!(nvmlDeviceGetPowerUsage(device + 4000, &raw mut number), INVALID_ARGUMENT);
        assert_eq!(nvmlShutdown(), SUCCESS);
        assert_eq!((nvmlShutdown(), nvmlDeviceGetPowerUsage(device, &raw mut number)), (UNINITIALIZED, UNINITIALIZED));
    }
}
