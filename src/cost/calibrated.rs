//! The cost model of a calibration file.

use std::collections::BTreeMap;

use crate::program::{Collective, CollectiveCall, Communicator, HostWork, Kernel};
use crate::units::Ns;

use super::calibration::{Calibration, HostClass, Interconnect};
use super::{CostModel, HostCost};

/// Prices descriptions from a calibration.
#[derive(Debug, Clone)]
pub struct CalibratedModel {
    calibration: Calibration,
    /// Mean cost of an operator over the sites where it was measured.
    by_operator: BTreeMap<String, HostClass>,
    /// Cost of a class that was never measured at all.
    default: HostClass,
    host_speed: f64,
    recorded: bool,
}

/// What is known of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Measured at this very site.
    Site,
    /// Measured at other sites of the same operator.
    Operator,
    /// Not measured: the median operator stands in.
    Guess,
}

/// The operator name in a class: what follows the first `/`, without the occurrence number.
pub fn operator_name(class: &str) -> &str {
    let name = class.split_once('/').map_or(class, |(_, name)| name);
    name.split_once('#').map_or(name, |(name, _)| name)
}

impl CalibratedModel {
    /// A model of `calibration` on a host `host_speed` times as fast.
    pub fn new(calibration: Calibration, host_speed: f64) -> Self {
        let mut groups: BTreeMap<String, Vec<HostClass>> = BTreeMap::new();
        let mut all: Vec<f64> = Vec::new();
        for (name, class) in &calibration.host.classes {
            groups
                .entry(operator_name(name).to_owned())
                .or_default()
                .push(*class);
            all.push(class.ns);
        }
        let by_operator = groups
            .into_iter()
            .map(|(name, list)| (name, mean(&list)))
            .collect();
        all.sort_by(f64::total_cmp);
        let ns = all.get(all.len() / 2).copied().unwrap_or(0.0);
        let default = HostClass {
            ns,
            log_sigma: 0.0,
            samples: 0,
        };
        CalibratedModel {
            calibration,
            by_operator,
            default,
            host_speed,
            recorded: false,
        }
    }

    /// The same model with a profiler attached: every recorded event costs the host.
    pub fn with_profiler(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// The calibration.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Cost of a class and how it is known.
    pub fn class(&self, class: &str) -> (HostClass, Known) {
        if let Some(cost) = self.calibration.host.classes.get(class) {
            return (*cost, Known::Site);
        }
        // Peers cost nothing unless a fake process group was measured: NCCL enqueues once.
        if class == "c10d.peer" {
            return (
                HostClass {
                    ns: 0.0,
                    log_sigma: 0.0,
                    samples: 0,
                },
                Known::Site,
            );
        }
        match self.by_operator.get(operator_name(class)) {
            Some(cost) => (*cost, Known::Operator),
            None => (self.default, Known::Guess),
        }
    }
}

fn mean(list: &[HostClass]) -> HostClass {
    let weight: f64 = list
        .iter()
        .map(|class| f64::from(class.samples.max(1)))
        .sum();
    let sum = |value: fn(&HostClass) -> f64| {
        list.iter()
            .map(|class| value(class) * f64::from(class.samples.max(1)))
            .sum::<f64>()
    };
    HostClass {
        ns: sum(|class| class.ns) / weight,
        log_sigma: sum(|class| class.log_sigma) / weight,
        samples: list.iter().map(|class| class.samples).sum(),
    }
}

impl CostModel for CalibratedModel {
    fn host(&self, work: &HostWork) -> HostCost {
        if let Some(ns) = work.measured_ns {
            return HostCost {
                centre_ns: ns as f64 / self.host_speed,
                log_sigma: 0.0,
            };
        }
        if work.count == 0 {
            return HostCost::default();
        }
        let (class, _) = self.class(&work.class);
        let count = f64::from(work.count);
        let mut ns = class.ns * count / (self.calibration.host.speed * self.host_speed);
        if self.recorded {
            let per_event = if work.class.starts_with("launch/") || work.class.starts_with("cuda.")
            {
                self.calibration.host.recorded_runtime_ns
            } else {
                self.calibration.host.recorded_operator_ns
            };
            ns += per_event * f64::from(work.recorded_events) * count;
        }
        // Independent repetitions average out.
        HostCost {
            centre_ns: ns,
            log_sigma: class.log_sigma / count.sqrt(),
        }
    }

    fn kernel_ns(&self, kernel: &Kernel) -> Ns {
        self.calibration.device.time_ns(kernel)
    }

    fn collective_ns(&self, call: &CollectiveCall, _: &Communicator, group: &[u32]) -> Ns {
        if let Some(ns) = call.measured_ns {
            return ns;
        }
        let (ranks, bytes) = (group.len().max(1) as f64, call.bytes as f64);
        let ns = match self.calibration.interconnect {
            // The copy reads and writes the output: the gathered buffer, or the reduced shard.
            Interconnect::FakeGroup => {
                let output = match call.op {
                    Collective::ReduceScatter => bytes / ranks,
                    Collective::AllReduce | Collective::Broadcast | Collective::Barrier => 0.0,
                    Collective::AllGather | Collective::AllToAll => bytes,
                };
                self.calibration.device.bytes_ns("copy", 2.0 * output)
            }
            // One rank has nobody to talk to: the call copies at most its own buffer.
            Interconnect::Ring { .. } if group.len() < 2 => {
                self.calibration.device.bytes_ns("copy", 2.0 * bytes)
            }
            Interconnect::Ring {
                alpha_ns,
                hop_ns,
                busbw_bytes_per_ns,
            } => {
                let steps = if call.op == Collective::AllReduce {
                    2.0
                } else {
                    1.0
                };
                let moved = steps * bytes * (ranks - 1.0) / ranks * call.imbalance;
                alpha_ns + hop_ns * steps * (ranks - 1.0) + moved / busbw_bytes_per_ns
            }
        };
        ns.round() as Ns
    }
}
