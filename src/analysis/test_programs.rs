//! Small Programs for the tests: every duration is in the description, so that closed forms hold.

use crate::cost::{CostModel, HostCost, price};
use crate::program::{
    ActionKind, Collective, CollectiveCall, CommId, Communicator, EventId, HostWork, HostWorkId,
    Kernel, KernelClass, Phase, Program, ProgramBuilder, StreamId, ThreadBuilder,
};
use crate::units::Ns;

use super::scenario::Scenario;

/// Passes measured durations through.
struct Measured;

impl CostModel for Measured {
    fn host(&self, work: &HostWork) -> HostCost {
        HostCost {
            centre_ns: work.measured_ns.unwrap_or(0) as f64 * f64::from(work.count.max(1)),
            log_sigma: 0.0,
        }
    }
    fn kernel_ns(&self, kernel: &Kernel) -> Ns {
        kernel.measured_ns.unwrap_or(0)
    }
    fn collective_ns(&self, call: &CollectiveCall, _: &Communicator, _: &[u32]) -> Ns {
        call.measured_ns.unwrap_or(0)
    }
}

/// Writes a Program of one rank with the threads main and autograd.
pub(super) struct Small {
    pub(super) builder: ProgramBuilder,
    pub(super) threads: [ThreadBuilder; 2],
    pub(super) current: usize,
}

impl Small {
    pub(super) fn new(streams: &[&str]) -> Self {
        let mut builder = ProgramBuilder::new();
        for stream in streams {
            builder.stream(stream);
        }
        Small {
            builder,
            threads: [
                ThreadBuilder::python("main"),
                ThreadBuilder::python("autograd"),
            ],
            current: 0,
        }
    }

    pub(super) fn at(&mut self, phase: Phase, unit: &str) {
        self.threads[self.current].phase = phase;
        unit.clone_into(&mut self.threads[self.current].unit);
    }

    pub(super) fn push(&mut self, cause: &str, host: HostWorkId, kind: ActionKind) {
        self.threads[self.current].push(&mut self.builder, cause, host, kind);
    }

    pub(super) fn host(&mut self, cause: &str, ns: Ns) {
        let host = self.builder.measured_host_work(cause, 0, ns);
        self.push(cause, host, ActionKind::Host);
    }

    pub(super) fn launch(&mut self, cause: &str, stream: u32, host_ns: Ns, device_ns: Ns) {
        let host = self
            .builder
            .measured_host_work("launch/runtime", 1, host_ns);
        let kernel = self.builder.kernel(Kernel {
            name: cause.to_owned(),
            class: KernelClass::Elementwise,
            mnk: [0; 3],
            flops: 0.0,
            bytes: 0.0,
            measured_ns: Some(device_ns),
        });
        let stream = StreamId(stream);
        self.push(cause, host, ActionKind::Launch { stream, kernel });
    }

    pub(super) fn collective(
        &mut self,
        cause: &str,
        op: Collective,
        comm: CommId,
        stream: u32,
        device_ns: Ns,
    ) {
        let call = self.builder.collective(CollectiveCall {
            op,
            bytes: device_ns,
            coalesced: 1,
            imbalance: 1.0,
            measured_ns: Some(device_ns),
        });
        let stream = StreamId(stream);
        self.push(
            cause,
            HostWorkId(0),
            ActionKind::Collective { comm, stream, call },
        );
    }

    pub(super) fn record(&mut self, cause: &str, stream: u32) -> EventId {
        let event = self.builder.event();
        let stream = StreamId(stream);
        self.push(
            cause,
            HostWorkId(0),
            ActionKind::EventRecord { event, stream },
        );
        event
    }

    pub(super) fn wait_stream(&mut self, cause: &str, waiter: u32, waited: u32) {
        let event = self.record(cause, waited);
        let stream = StreamId(waiter);
        self.push(
            cause,
            HostWorkId(0),
            ActionKind::StreamWait { event, stream },
        );
    }

    pub(super) fn synchronize(&mut self, cause: &str) {
        self.push(cause, HostWorkId(0), ActionKind::HostWaitDevice);
    }

    pub(super) fn on_autograd(&mut self, inside: impl FnOnce(&mut Self)) {
        let (start, done) = (self.builder.signal(), self.builder.signal());
        let none = HostWorkId(0);
        self.push("hand_over", none, ActionKind::Signal { signal: start });
        self.current = 1;
        self.push("hand_over", none, ActionKind::Await { signal: start });
        inside(self);
        self.push("hand_over", none, ActionKind::Signal { signal: done });
        self.current = 0;
        self.push("hand_over", none, ActionKind::Await { signal: done });
    }

    /// The scenario of a world of `ranks` ranks that all run this Program.
    pub(super) fn scenario(self, ranks: usize) -> Scenario {
        let Small {
            mut builder,
            threads,
            ..
        } = self;
        let class = builder.rank_class(threads.into_iter().map(|t| t.thread).collect());
        builder.ranks(vec![class; ranks]);
        scenario(builder.finish().expect("a sound Program"))
    }
}

/// Prices a Program whose descriptions hold their durations.
pub(super) fn scenario(program: Program) -> Scenario {
    let prices = price(&program, &Measured);
    Scenario::new(program, prices)
}
