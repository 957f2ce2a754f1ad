//! What a profiler should record for a Program: one sequence of items over both threads, each with
//! the unrecorded host work that precedes it.

use crate::cost::calibrated::operator_name;
use crate::program::{ActionKind, HostWorkId, Phase, Program};

/// One recorded operator of a Program, or one bare launch.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedItem {
    /// Operator name as the profiler records it.
    pub name: String,
    /// Host class that prices it; `None` for a bare launch, whose class is `launch`.
    pub work: Option<HostWorkId>,
    /// Launches inside it.
    pub launches: u32,
    /// Ranks of a collective, whose host work grows with them in a fake process group.
    pub peers: u32,
    /// Whether it is a collective.
    pub collective: bool,
    /// Unrecorded host work since the previous item: class and count.
    pub before: Vec<HostWorkId>,
    /// Part of the step.
    pub phase: Phase,
}

/// Whether a host class stands for work that no profiler event shows.
pub fn is_unrecorded(class: &str) -> bool {
    class.ends_with("/python") || class.starts_with("cuda.")
}

/// Items of rank class 0 in the order in which they run: the autograd thread's part stands where
/// the main thread waits for it.
pub fn expected_items(program: &Program) -> Vec<ExpectedItem> {
    let mut items = Vec::new();
    let mut before = Vec::new();
    let mut previous_unrecorded = false;
    for action in linearised(program) {
        let work = program.host_work(action);
        let class = work.class.as_str();
        match action.kind {
            ActionKind::Launch { .. } if previous_unrecorded => {
                items.push(ExpectedItem {
                    name: "cudaLaunchKernel".to_owned(),
                    work: None,
                    launches: 1,
                    peers: 0,
                    collective: false,
                    before: std::mem::take(&mut before),
                    phase: program.tag(action).phase,
                });
            }
            ActionKind::Launch { .. } => {
                if let Some(last) = items.last_mut() {
                    last.launches += 1;
                }
            }
            ActionKind::Collective { .. } => {
                if let Some(last) = items.last_mut() {
                    last.collective = true;
                    last.peers = if class == "c10d.peer" { work.count } else { 0 };
                }
            }
            _ if class.is_empty() => {}
            _ if is_unrecorded(class) => before.push(action.host),
            _ => items.push(ExpectedItem {
                name: operator_name(class).to_owned(),
                work: Some(action.host),
                launches: 0,
                peers: 0,
                collective: false,
                before: std::mem::take(&mut before),
                phase: program.tag(action).phase,
            }),
        }
        previous_unrecorded = is_unrecorded(class)
            || (previous_unrecorded
                && matches!(action.kind, ActionKind::Launch { .. })
                && class.is_empty());
    }
    items
}

/// Actions of rank class 0 in the order in which they run.
fn linearised(program: &Program) -> Vec<&crate::program::Action> {
    let threads = &program.classes[0].threads;
    let mut position = vec![0; threads.len()];
    let mut order = Vec::new();
    let mut given = vec![false; program.signal_count as usize];
    let mut current = 0;
    loop {
        let Some(action) = threads[current].actions.get(position[current]) else {
            // A finished thread hands over to any thread that has work left.
            match (0..threads.len()).find(|&t| position[t] < threads[t].actions.len()) {
                Some(next) if next != current => {
                    current = next;
                    continue;
                }
                _ => return order,
            }
        };
        match action.kind {
            ActionKind::Await { signal } if !given[signal.index()] => {
                let other = (0..threads.len())
                    .find(|&t| t != current && position[t] < threads[t].actions.len());
                match other {
                    Some(next) => current = next,
                    None => return order,
                }
                continue;
            }
            ActionKind::Signal { signal } => given[signal.index()] = true,
            _ => {}
        }
        order.push(action);
        position[current] += 1;
    }
}
