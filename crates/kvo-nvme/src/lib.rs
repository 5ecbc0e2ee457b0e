//! kvo-nvme.
