//! Expands the model's recipes into actions.

use crate::model::recipe::{Operator, Recipe, Step};
use crate::program::{ActionKind, Collective, CollectiveCall, HostWorkId, Kernel, KernelClass};

use super::writer::{LAUNCH_EVENTS, Streams, Writer};

impl Writer {
    /// Expands a recipe; `accumulate` is called for every gradient that autograd hands over.
    pub fn recipe(
        &mut self,
        cause: &str,
        recipe: &Recipe,
        accumulate: &mut dyn FnMut(&mut Self, &str),
    ) {
        for step in &recipe.steps {
            match step {
                Step::Operator(operator) => self.recipe_operator(cause, operator),
                Step::AccumulateGrad(parameter) => accumulate(self, parameter),
                Step::ForkSideStream => {
                    let Streams {
                        host_copy, compute, ..
                    } = self.streams;
                    self.wait_stream(cause, host_copy, compute);
                }
                Step::CopyToHost {
                    site,
                    events,
                    bytes,
                } => self.copy_to_host(site, *events, *bytes),
                Step::WaitHostCopies { site } => {
                    let host = self.program.host_work(site, 1, 1);
                    let event = self.host_copies_done;
                    self.push(
                        "model.dispatch_sync",
                        host,
                        ActionKind::HostWaitEvent { event },
                    );
                }
                Step::AllToAll {
                    site,
                    events,
                    bytes,
                } => {
                    self.expert_collective(cause, site, *events, Collective::AllToAll, *bytes);
                }
                Step::GatherCounts {
                    site,
                    events,
                    bytes,
                } => {
                    self.expert_collective(cause, site, *events, Collective::AllGather, *bytes);
                }
                Step::Item { site, events } => self.item(cause, site, *events),
            }
        }
    }

    fn copy_to_host(&mut self, site: &str, events: u32, bytes: u64) {
        let cause = "model.dispatch_sync";
        self.operator(cause, site, events);
        let copy = Kernel {
            name: "token counts to host".to_owned(),
            class: KernelClass::Memcpy,
            mnk: [0; 3],
            flops: 0.0,
            bytes: bytes as f64,
            measured_ns: None,
        };
        let stream = self.streams.host_copy;
        self.launch(cause, stream, copy);
        let host = self.program.host_work("cuda.event_record", 1, 1);
        let event = self.host_copies_done;
        self.push(cause, host, ActionKind::EventRecord { event, stream });
    }

    fn expert_collective(
        &mut self,
        cause: &str,
        site: &str,
        events: u32,
        op: Collective,
        bytes: u64,
    ) {
        self.operator(cause, site, events);
        let call = CollectiveCall {
            op,
            bytes,
            coalesced: 1,
            imbalance: 1.0,
            measured_ns: None,
        };
        let call = self.program.collective(call);
        let comm = self.comms.expert_parallel;
        let host = self.program.host_work("launch/alltoall", 1, LAUNCH_EVENTS);
        let stream = self.streams.compute;
        self.push(cause, host, ActionKind::Collective { comm, stream, call });
    }

    fn recipe_operator(&mut self, cause: &str, operator: &Operator) {
        self.operator(cause, &operator.site, operator.events);
        if !operator.multi_stream {
            for kernel in &operator.kernels {
                self.launch(cause, self.streams.compute, kernel.clone());
            }
            return;
        }
        // Transformer Engine forks its streams from the current one and joins them after the GEMMs.
        // The fork and join are part of the operator's host cost.
        let (none, compute) = (HostWorkId(0), self.streams.compute);
        let (grouped, events) = (self.streams.grouped, self.grouped_event);
        self.push(
            cause,
            none,
            ActionKind::EventRecord {
                event: events[4],
                stream: compute,
            },
        );
        for stream in grouped {
            self.push(
                cause,
                none,
                ActionKind::StreamWait {
                    event: events[4],
                    stream,
                },
            );
        }
        for (index, kernel) in operator.kernels.iter().enumerate() {
            self.launch(cause, grouped[index % grouped.len()], kernel.clone());
        }
        for (stream, event) in grouped.into_iter().zip(events) {
            self.push(cause, none, ActionKind::EventRecord { event, stream });
            self.push(
                cause,
                none,
                ActionKind::StreamWait {
                    event,
                    stream: compute,
                },
            );
        }
    }
}
