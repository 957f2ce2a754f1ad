//! How long each action takes. A cost model knows no order: it prices descriptions one at a time.

pub mod calibrated;
pub mod calibration;
pub mod kernel;

use crate::program::{CollectiveCall, Communicator, HostWork, Kernel};
use crate::units::Ns;

/// Centre and spread of one piece of host work.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HostCost {
    /// Central duration.
    pub centre_ns: f64,
    /// Standard deviation of the logarithm of the duration, for jitter. 0 means no jitter.
    pub log_sigma: f64,
}

/// Prices descriptions. Implementations: the calibrated model, and the durations a trace recorded.
pub trait CostModel {
    /// Host work on a thread.
    fn host(&self, work: &HostWork) -> HostCost;
    /// Device time of a kernel that runs alone.
    fn kernel_ns(&self, kernel: &Kernel) -> Ns;
    /// Transfer time of a collective from the moment the last rank has arrived.
    fn collective_ns(&self, call: &CollectiveCall, comm: &Communicator, group: &[u32]) -> Ns;
}

/// Durations of every action of a Program, made once by [`price`]; the engine reads nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    /// Per host work id: centre and spread.
    pub host: Vec<HostCost>,
    /// Per kernel id.
    pub kernel_ns: Vec<Ns>,
    /// Per collective id, per communicator id, per group index.
    pub collective_ns: Vec<Vec<Vec<Ns>>>,
}

/// Prices every description of `program`.
pub fn price(program: &crate::program::Program, model: &dyn CostModel) -> Prices {
    Prices {
        host: program
            .host_works
            .iter()
            .map(|work| model.host(work))
            .collect(),
        kernel_ns: program
            .kernels
            .iter()
            .map(|kernel| model.kernel_ns(kernel))
            .collect(),
        collective_ns: program
            .collectives
            .iter()
            .map(|call| {
                let groups = |comm: &Communicator| {
                    comm.groups
                        .iter()
                        .map(|g| model.collective_ns(call, comm, g))
                        .collect()
                };
                program.communicators.iter().map(groups).collect()
            })
            .collect(),
    }
}
