//! What a profiler recorded in one step, as one sequence of items over both host threads.
//!
//! Only one thread runs Python at a time, so the items of the main and the autograd thread, ordered
//! by start, form one sequence. Wrappers (autograd's `evaluate_function`, annotations, the
//! optimizer's range) are transparent: their own time counts as the gap before the next item.

use crate::units::Ns;

/// A recorded host event of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEvent {
    /// Name.
    pub name: String,
    /// Whether it is an annotation (`record_function`, `ProfilerStep`).
    pub annotation: bool,
    /// Whether it is a CUDA runtime or driver call.
    pub runtime: bool,
    /// Thread.
    pub thread: u64,
    /// Start.
    pub start_ns: i64,
    /// Duration.
    pub duration_ns: Ns,
}

impl HostEvent {
    fn end_ns(&self) -> i64 {
        self.start_ns + self.duration_ns as i64
    }

    fn is_launch(&self) -> bool {
        const LAUNCHES: [&str; 5] = [
            "cudaLaunch",
            "cuLaunch",
            "cudaMemcpyAsync",
            "cudaMemsetAsync",
            "cudaGraphLaunch",
        ];
        self.runtime && LAUNCHES.iter().any(|prefix| self.name.starts_with(prefix))
    }

    fn is_wait(&self) -> bool {
        self.runtime && self.name.contains("Synchronize")
    }

    fn is_transparent(&self) -> bool {
        self.annotation
            || self.name.starts_with("autograd::engine::evaluate_function")
            || self.name == "torch::autograd::AccumulateGrad"
            || self.name.starts_with("Optimizer.")
    }
}

/// One recorded item: an operator with everything inside it, or a bare launch or wait.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedItem {
    /// Operator name.
    pub name: String,
    /// Host time since the previous item ended, outside any item.
    pub gap_ns: f64,
    /// Events recorded in the gap.
    pub gap_events: Events,
    /// Host time inside the item without launches and waits.
    pub self_ns: f64,
    /// Events recorded inside the item, itself included, launches excluded.
    pub self_events: Events,
    /// Host time of each launch inside.
    pub launch_ns: Vec<f64>,
    /// Host time of waits inside.
    pub wait_ns: f64,
    /// Start of the gap, for ordering by phase.
    pub start_ns: i64,
}

/// Numbers of recorded events by kind; each kind costs the host a different time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Events {
    /// Operators and annotations.
    pub operators: u32,
    /// Runtime and driver calls.
    pub runtime: u32,
}

impl Events {
    fn count(&mut self, event: &HostEvent) {
        if event.runtime {
            self.runtime += 1;
        } else {
            self.operators += 1;
        }
    }
}

/// Items of the window `[start_ns, end_ns)`, in order of start.
pub fn recorded_items(events: &[HostEvent], start_ns: i64, end_ns: i64) -> Vec<RecordedItem> {
    let inside = |event: &&HostEvent| event.start_ns >= start_ns && event.end_ns() <= end_ns;
    let mut threads: std::collections::BTreeMap<u64, Vec<&HostEvent>> = Default::default();
    for event in events.iter().filter(inside) {
        threads.entry(event.thread).or_default().push(event);
    }
    let mut pieces = Vec::new();
    for events in threads.values_mut() {
        events.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.duration_ns)));
        thread_pieces(events, &mut pieces);
    }
    pieces.sort_by_key(|piece| piece.start_ns);
    join(pieces, start_ns)
}

/// An item, or a lone event that only counts towards the next gap.
struct Piece {
    item: Option<RecordedItem>,
    events: Events,
    start_ns: i64,
    end_ns: i64,
}

fn thread_pieces(events: &[&HostEvent], pieces: &mut Vec<Piece>) {
    let mut index = 0;
    while index < events.len() {
        let event = events[index];
        index += 1;
        let mut own = Events::default();
        own.count(event);
        let bare = event.runtime && !event.is_launch() && !event.is_wait();
        if event.is_transparent() || bare {
            let end_ns = if bare { event.end_ns() } else { event.start_ns };
            let item = None;
            pieces.push(Piece {
                item,
                events: own,
                start_ns: event.start_ns,
                end_ns,
            });
            continue;
        }
        let mut item = RecordedItem {
            name: event.name.clone(),
            ..Default::default()
        };
        let mut outside_ns = 0;
        if event.is_launch() {
            item.launch_ns.push(event.duration_ns as f64);
            outside_ns += event.duration_ns;
        } else if event.is_wait() {
            item.wait_ns = event.duration_ns as f64;
            outside_ns += event.duration_ns;
        } else {
            item.self_events = own;
        }
        while index < events.len() && events[index].start_ns < event.end_ns() {
            let nested = events[index];
            index += 1;
            if nested.is_launch() {
                item.launch_ns.push(nested.duration_ns as f64);
                outside_ns += nested.duration_ns;
            } else if nested.is_wait() {
                item.wait_ns += nested.duration_ns as f64;
                outside_ns += nested.duration_ns;
            } else {
                item.self_events.count(nested);
            }
        }
        item.self_ns = event.duration_ns.saturating_sub(outside_ns) as f64;
        let (start_ns, end_ns) = (event.start_ns, event.end_ns());
        pieces.push(Piece {
            item: Some(item),
            events: Events::default(),
            start_ns,
            end_ns,
        });
    }
}

/// Turns pieces into items with the gap before each.
fn join(pieces: Vec<Piece>, start_ns: i64) -> Vec<RecordedItem> {
    let mut items = Vec::new();
    let mut previous_end_ns = start_ns;
    let mut gap_events = Events::default();
    for piece in pieces {
        gap_events.operators += piece.events.operators;
        gap_events.runtime += piece.events.runtime;
        let Some(mut item) = piece.item else { continue };
        item.gap_ns = (piece.start_ns - previous_end_ns).max(0) as f64;
        item.gap_events = std::mem::take(&mut gap_events);
        item.start_ns = previous_end_ns;
        previous_end_ns = previous_end_ns.max(piece.end_ns);
        items.push(item);
    }
    items
}
