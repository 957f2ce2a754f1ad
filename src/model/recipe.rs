//! Operators of a component in dispatch order: what the host dispatches and which kernels follow.
//!
//! A [`Recipe`] is what a PyTorch profiler would list at the top level of one thread for one
//! component (attention forward, say). It names no time. Every operator has a *site*, its name plus
//! its position among equal names in the component; calibration gives each site its host cost, and
//! falls back to the operator's class where a site was never measured.

use crate::program::{Kernel, KernelClass};

/// One entry of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A dispatched operator (or autograd node) and the kernels it launches on the compute stream.
    Operator(Operator),
    /// Autograd hands the gradient of a parameter of the component to its accumulator. FSDP hooks
    /// hang here. The name is relative to the layer, e.g. `mlp.linear_fc1.weight`.
    AccumulateGrad(String),
    /// A small device-to-host copy on the side stream, which `WaitHostCopies` waits for.
    CopyToHost {
        /// Site name.
        site: String,
        /// Events a profiler records.
        events: u32,
        /// Bytes copied.
        bytes: u64,
    },
    /// The side stream waits for the compute stream before the first copy.
    ForkSideStream,
    /// The host waits for the copies (`cudaEventSynchronize`).
    WaitHostCopies {
        /// Site name.
        site: String,
    },
    /// An alltoall over the expert-parallel group.
    AllToAll {
        /// Site name.
        site: String,
        /// Events a profiler records.
        events: u32,
        /// Bytes one rank sends in total.
        bytes: u64,
    },
    /// A small all-gather over the expert-parallel group (token counts).
    GatherCounts {
        /// Site name.
        site: String,
        /// Events a profiler records.
        events: u32,
        /// Bytes of the gathered buffer.
        bytes: u64,
    },
    /// The host reads one value and waits for the compute stream (`.item()`).
    Item {
        /// Site name.
        site: String,
        /// Events a profiler records.
        events: u32,
    },
}

/// A dispatched operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// Site: `component/name` or `component/name#n`.
    pub site: String,
    /// Events a PyTorch profiler records for it, itself included, launches excluded.
    pub events: u32,
    /// Kernels it launches, in order.
    pub kernels: Vec<Kernel>,
    /// Whether its launches are spread over Transformer Engine's compute streams.
    pub multi_stream: bool,
}

/// Operators of one component in dispatch order.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    component: String,
    seen: std::collections::BTreeMap<String, u32>,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Recipe {
    /// An empty recipe for `component`, e.g. `mla.forward`.
    pub fn new(component: &str) -> Self {
        Recipe {
            component: component.to_owned(),
            seen: Default::default(),
            steps: Vec::new(),
        }
    }

    fn site(&mut self, name: &str) -> String {
        let count = self.seen.entry(name.to_owned()).or_insert(0);
        *count += 1;
        match *count {
            1 => format!("{}/{name}", self.component),
            n => format!("{}/{name}#{n}", self.component),
        }
    }

    /// Appends an operator without kernels. `nested` is the number of events recorded inside it.
    pub fn op(&mut self, name: &str, nested: u32) -> &mut Self {
        let site = self.site(name);
        let operator = Operator {
            site,
            events: 1 + nested,
            kernels: Vec::new(),
            multi_stream: false,
        };
        self.steps.push(Step::Operator(operator));
        self
    }

    /// Appends `count` operators of one name without kernels.
    pub fn ops(&mut self, name: &str, nested: u32, count: usize) -> &mut Self {
        for _ in 0..count {
            self.op(name, nested);
        }
        self
    }

    fn last(&mut self) -> &mut Operator {
        match self.steps.last_mut() {
            Some(Step::Operator(operator)) => operator,
            _ => unreachable!("kernels follow the operator that launches them"),
        }
    }

    /// Adds a kernel to the last operator.
    pub fn kernel(&mut self, name: &str, class: KernelClass, flops: f64, bytes: f64) -> &mut Self {
        let kernel = Kernel {
            name: name.to_owned(),
            class,
            mnk: [0; 3],
            flops,
            bytes,
            measured_ns: None,
        };
        self.last().kernels.push(kernel);
        self
    }

    /// Elementwise kernel over `bytes` read and written.
    pub fn elementwise(&mut self, bytes: f64) -> &mut Self {
        self.kernel("elementwise", KernelClass::Elementwise, 0.0, bytes)
    }

    /// Copy of one dtype, strided or concatenating.
    pub fn copy(&mut self, bytes: f64) -> &mut Self {
        self.kernel("copy", KernelClass::Copy, 0.0, bytes)
    }

    /// Copy that changes the dtype.
    pub fn cast(&mut self, bytes: f64) -> &mut Self {
        self.kernel("cast", KernelClass::Cast, 0.0, bytes)
    }

    /// Fill with a constant.
    pub fn fill(&mut self, bytes: f64) -> &mut Self {
        self.kernel("fill", KernelClass::Fill, 0.0, bytes)
    }

    /// Reduction over `bytes` of input.
    pub fn reduce(&mut self, bytes: f64) -> &mut Self {
        self.kernel("reduce", KernelClass::Reduction, 0.0, bytes)
    }

    /// Sort, top-k, scatter, gather or permutation over `bytes`.
    pub fn index(&mut self, bytes: f64) -> &mut Self {
        self.kernel("index", KernelClass::Index, 0.0, bytes)
    }

    /// Norm over `bytes`.
    pub fn norm(&mut self, bytes: f64) -> &mut Self {
        self.kernel("rmsnorm", KernelClass::Norm, 0.0, bytes)
    }

    /// A kernel whose time is the launch floor.
    pub fn tiny(&mut self) -> &mut Self {
        self.kernel("tiny", KernelClass::Tiny, 0.0, 0.0)
    }

    /// A memset of a few bytes.
    pub fn memset(&mut self) -> &mut Self {
        self.kernel("memset", KernelClass::Memset, 0.0, 4.0)
    }

    /// bf16 matrix product of `m x n x k`.
    pub fn gemm(&mut self, m: u64, n: u64, k: u64) -> &mut Self {
        let kernel = gemm_kernel(KernelClass::Gemm, m, n, k);
        self.last().kernels.push(kernel);
        self
    }

    /// `count` products of `m x n x k` spread over Transformer Engine's streams, one per expert.
    pub fn grouped_gemm(&mut self, count: u64, m: u64, n: u64, k: u64) -> &mut Self {
        let last = self.last();
        last.multi_stream = true;
        for _ in 0..count {
            last.kernels
                .push(gemm_kernel(KernelClass::GroupedGemm, m, n, k));
        }
        self
    }

    /// Hands the gradient of `parameter` (relative to the layer) to its accumulator.
    pub fn accumulate(&mut self, parameter: &str) -> &mut Self {
        self.steps.push(Step::AccumulateGrad(parameter.to_owned()));
        self
    }

    /// An alltoall of `bytes` a rank.
    pub fn alltoall(&mut self, name: &str, nested: u32, bytes: u64) -> &mut Self {
        let site = self.site(name);
        self.steps.push(Step::AllToAll {
            site,
            events: 1 + nested,
            bytes,
        });
        self
    }

    /// A small all-gather over the expert-parallel group.
    pub fn gather_counts(&mut self, name: &str, nested: u32, bytes: u64) -> &mut Self {
        let site = self.site(name);
        self.steps.push(Step::GatherCounts {
            site,
            events: 1 + nested,
            bytes,
        });
        self
    }

    /// A device-to-host copy on the side stream.
    pub fn copy_to_host(&mut self, name: &str, nested: u32, bytes: u64) -> &mut Self {
        let site = self.site(name);
        self.steps.push(Step::CopyToHost {
            site,
            events: 1 + nested,
            bytes,
        });
        self
    }

    /// The side stream waits for the compute stream.
    pub fn fork_side_stream(&mut self) -> &mut Self {
        self.steps.push(Step::ForkSideStream);
        self
    }

    /// The host waits for the copies on the side stream.
    pub fn wait_host_copies(&mut self) -> &mut Self {
        let site = self.site("cudaEventSynchronize");
        self.steps.push(Step::WaitHostCopies { site });
        self
    }

    /// The host reads a value.
    pub fn item(&mut self, nested: u32) -> &mut Self {
        let site = self.site("aten::item");
        self.steps.push(Step::Item {
            site,
            events: 1 + nested,
        });
        self
    }
}

fn gemm_kernel(class: KernelClass, m: u64, n: u64, k: u64) -> Kernel {
    let (mf, nf, kf) = (m as f64, n as f64, k as f64);
    Kernel {
        name: format!("gemm {m}x{n}x{k}"),
        class,
        mnk: [m, n, k],
        flops: 2.0 * mf * nf * kf,
        bytes: 2.0 * (mf * kf + nf * kf + mf * nf),
        measured_ns: None,
    }
}
