//! How much longer each action could take before the step gets longer.
//!
//! The dependencies of a step are rebuilt from the Program (program order, hand-overs, streams,
//! events, communicators) over the times of a timeline, and the latest possible ends are passed back
//! from the end of the step. Slack is latest end minus end. An action of the critical path has none.

use rustc_hash::FxHashMap;

use crate::engine::{Binding, Iteration, Wait};
use crate::program::{ActionKind, CommId, EventId, Program, SignalId, StreamId};
use crate::units::Ns;

use super::breakdown::{action_of, device_action};

/// Slack of every host and device span of an iteration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slack {
    /// Of the work of each host span, in the order of the timeline.
    pub host_ns: Vec<Ns>,
    /// Of each device span.
    pub device_ns: Vec<Ns>,
}

/// Index of a node: for host span `i`, `2 i` is the end of its work and `2 i + 1` the end of its
/// wait; device spans follow.
type Node = u32;

/// Computes the slack of every span.
pub fn slack(program: &Program, iteration: &Iteration) -> Slack {
    let graph = Graph::new(program, iteration);
    let latest = graph.latest_end_ns(iteration);
    let hosts = iteration.host.len();
    let host = iteration.host.iter().enumerate();
    let device = iteration.device.iter().enumerate();
    Slack {
        host_ns: host
            .map(|(i, span)| latest[2 * i].saturating_sub(span.work_end_ns))
            .collect(),
        device_ns: device
            .map(|(i, span)| latest[2 * hosts + i].saturating_sub(span.end_ns))
            .collect(),
    }
}

/// What must be over before what.
struct Graph {
    /// Pairs `(earlier, later)`.
    edges: Vec<(Node, Node)>,
    nodes: usize,
    /// Time that a node takes after its predecessors.
    length_ns: Vec<Ns>,
}

/// State of one rank while its actions are replayed.
#[derive(Default)]
struct Rank {
    thread_tail: FxHashMap<u32, Node>,
    streams: FxHashMap<StreamId, Vec<Node>>,
    events: FxHashMap<EventId, Vec<Node>>,
    signals: FxHashMap<SignalId, Node>,
    communicators: FxHashMap<CommId, Node>,
}

impl Graph {
    fn new(program: &Program, iteration: &Iteration) -> Self {
        let (hosts, devices) = (iteration.host.len(), iteration.device.len());
        let mut graph = Graph {
            edges: Vec::with_capacity(3 * hosts),
            nodes: 2 * hosts + devices,
            length_ns: vec![0; 2 * hosts + devices],
        };
        let device_of: FxHashMap<(u32, u32, u32), usize> = iteration
            .device
            .iter()
            .enumerate()
            .map(|(index, span)| ((span.rank, span.thread, span.action), index))
            .collect();
        let mut ranks: FxHashMap<u32, Rank> = FxHashMap::default();
        for (index, span) in iteration.host.iter().enumerate() {
            let (work, end) = (2 * index as Node, 2 * index as Node + 1);
            graph.length_ns[work as usize] = span.work_end_ns - span.start_ns;
            graph.edges.push((work, end));
            let rank = ranks.entry(span.rank).or_default();
            if let Some(tail) = rank.thread_tail.insert(span.thread, end) {
                graph.edges.push((tail, work));
            }
            let kind = action_of(program, span).kind;
            let device = device_of
                .get(&(span.rank, span.thread, span.action))
                .copied();
            let node = device.map(|device| (2 * hosts + device) as Node);
            graph.act(rank, kind, (work, end), node);
            if let (Some(device), Some(node)) = (device, node) {
                let span = &iteration.device[device];
                graph.length_ns[node as usize] = span.end_ns - span.start_ns;
                if let ActionKind::Collective { comm, .. } = device_action(program, span).kind
                    && let Some(tail) = rank.communicators.insert(comm, node)
                {
                    graph.edges.push((tail, node));
                }
            }
            if let (Wait::LaunchQueue, Some(device)) = (span.wait, span.waited_for) {
                // The queue is free when the kernel starts; its end is later, so this edge is
                // stricter than needed and the slack errs on the safe side.
                graph.edges.push(((2 * hosts) as Node + device, end));
            }
        }
        graph.bindings(iteration);
        graph.edges.sort_unstable_by_key(|edge| (edge.1, edge.0));
        graph.edges.dedup();
        graph
    }

    /// What the engine found to be binding is a dependency, also across ranks.
    fn bindings(&mut self, iteration: &Iteration) {
        let hosts = iteration.host.len();
        for (index, span) in iteration.device.iter().enumerate() {
            let node = (2 * hosts + index) as Node;
            match span.binding {
                Binding::Host(host) => self.edges.push((2 * host + 1, node)),
                Binding::Device(device) => self.edges.push(((2 * hosts) as Node + device, node)),
                Binding::Earlier => {}
            }
        }
    }

    /// Adds the dependencies of an action.
    fn act(
        &mut self,
        rank: &mut Rank,
        kind: ActionKind,
        (work, end): (Node, Node),
        node: Option<Node>,
    ) {
        let all = |graph: &mut Graph, from: &[Node], to: Node| {
            graph.edges.extend(from.iter().map(|&from| (from, to)));
        };
        match kind {
            ActionKind::Launch { stream, .. } | ActionKind::Collective { stream, .. } => {
                if let Some(node) = node {
                    let tail = rank.streams.insert(stream, vec![node]);
                    all(self, &tail.unwrap_or_default(), node);
                    self.edges.push((end, node));
                }
            }
            ActionKind::EventRecord { event, stream } => {
                let tail = rank.streams.get(&stream).cloned().unwrap_or_default();
                rank.events.insert(event, tail);
            }
            ActionKind::StreamWait { event, stream } => {
                let waited = rank.events.get(&event).cloned().unwrap_or_default();
                let tail = rank.streams.entry(stream).or_default();
                tail.extend(waited);
                tail.sort_unstable();
                tail.dedup();
            }
            ActionKind::HostWaitEvent { event } => {
                all(
                    self,
                    rank.events.get(&event).map_or(&[], Vec::as_slice),
                    end,
                );
            }
            ActionKind::HostWaitStream { stream } => {
                all(
                    self,
                    rank.streams.get(&stream).map_or(&[], Vec::as_slice),
                    end,
                );
            }
            ActionKind::HostWaitDevice => {
                for tail in rank.streams.values() {
                    all(self, tail, end);
                }
            }
            ActionKind::Signal { signal } => {
                rank.signals.insert(signal, work);
            }
            ActionKind::Await { signal } => {
                if let Some(&given) = rank.signals.get(&signal) {
                    self.edges.push((given, end));
                }
            }
            ActionKind::Host | ActionKind::Alloc { .. } | ActionKind::Free { .. } => {}
        }
    }

    /// Latest end of every node that leaves the end of rank 0's main thread where it is. What
    /// nothing waits for in this step may last until the step ends.
    fn latest_end_ns(&self, iteration: &Iteration) -> Vec<Ns> {
        let mut latest = vec![iteration.end_ns; self.nodes];
        for (index, span) in iteration.device.iter().enumerate() {
            let node = 2 * iteration.host.len() + index;
            latest[node] = latest[node].max(span.end_ns);
        }
        for node in self.reverse_order() {
            let start_ns = latest[node as usize].saturating_sub(self.length_ns[node as usize]);
            for before in self.before(node) {
                let limit = &mut latest[before as usize];
                *limit = (*limit).min(start_ns);
            }
        }
        latest
    }

    /// Every node after all that depend on it.
    fn reverse_order(&self) -> Vec<Node> {
        let mut dependents = vec![0u32; self.nodes];
        for &(earlier, _) in &self.edges {
            dependents[earlier as usize] += 1;
        }
        let mut order: Vec<Node> = (0..self.nodes as Node)
            .filter(|&node| dependents[node as usize] == 0)
            .collect();
        let mut next = 0;
        while next < order.len() {
            for before in self.before(order[next]) {
                dependents[before as usize] -= 1;
                if dependents[before as usize] == 0 {
                    order.push(before);
                }
            }
            next += 1;
        }
        order
    }

    /// What must be over before `node`; `edges` are sorted by their later end.
    fn before(&self, node: Node) -> impl Iterator<Item = Node> {
        let from = self.edges.partition_point(|edge| edge.1 < node);
        self.edges[from..]
            .iter()
            .take_while(move |edge| edge.1 == node)
            .map(|edge| edge.0)
    }
}
