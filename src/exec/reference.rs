//! Differentiable reference execution through candle operations; also the truth that kernels are checked against.
