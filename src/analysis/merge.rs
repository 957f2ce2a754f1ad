//! Edits that let one action stand for many: batched loops and merged units.

use std::collections::BTreeMap;

use crate::program::{ActionKind, Collective, CommId, Phase, StreamId};

use super::edit::{EditError, Editor, Place, Selector};
use super::scenario::Scenario;

/// What makes actions the same call: where it is enqueued, and the class of its host work.
type Call = (Option<StreamId>, Option<CommId>, String);

/// One call instead of a loop, in each phase and unit.
pub(super) fn batch(scenario: &mut Scenario, selector: &Selector) -> Result<(), EditError> {
    let mut editor = Editor::new(scenario, selector)?;
    let groups = grouped(&editor, |unit| unit.to_owned());
    for places in groups.into_values() {
        let last = places.len() - 1;
        collapse(&mut editor, &places, last);
        // A loop may also be one action of several rounds.
        editor.change(places[last], |editor, action| {
            let count = editor.scenario.program.host_works[action.host.index()].count;
            if count > 1 {
                action.host = editor.scaled_host(action.host, 1.0 / f64::from(count));
            }
        });
    }
    Ok(())
}

/// One call for `units` units in a row.
pub(super) fn units(
    scenario: &mut Scenario,
    selector: &Selector,
    units: usize,
) -> Result<(), EditError> {
    let mut editor = Editor::new(scenario, selector)?;
    let mut order: BTreeMap<String, usize> = BTreeMap::new();
    for &place in &editor.places {
        let unit = unit_of(&editor, place);
        let next = order.len();
        order.entry(unit).or_insert(next);
    }
    let groups = grouped(&editor, |unit| {
        (order.get(unit).copied().unwrap_or(0) / units.max(1)).to_string()
    });
    // The first unit of each group, so that its own actions stay as they are.
    for places in groups.into_values() {
        let first = unit_of(&editor, places[0]);
        let (kept, gone): (Vec<Place>, Vec<Place>) = places
            .iter()
            .partition(|&&place| unit_of(&editor, place) == first);
        if gone.is_empty() {
            continue;
        }
        // Gradients of all units have to be there before they are reduced.
        let reduces = kept.iter().any(|&place| reduces(&editor, place));
        let all: Vec<Place> = match reduces {
            true => kept.into_iter().chain(gone).collect(),
            false => std::iter::once(kept[0]).chain(gone).collect(),
        };
        let stays = if reduces { all.len() - 1 } else { 0 };
        collapse(&mut editor, &all, stays);
    }
    Ok(())
}

fn unit_of(editor: &Editor<'_>, (class, thread, index): Place) -> String {
    let program = &editor.scenario.program;
    let action = &program.classes[class].threads[thread].actions[index];
    program.tag(action).unit.clone()
}

fn reduces(editor: &Editor<'_>, (class, thread, index): Place) -> bool {
    let program = &editor.scenario.program;
    match program.classes[class].threads[thread].actions[index].kind {
        ActionKind::Collective { call, .. } => {
            program.collectives[call.index()].op == Collective::ReduceScatter
        }
        _ => false,
    }
}

/// Selected actions of one call, by rank class, thread, phase and what `unit` makes of the unit.
fn grouped(
    editor: &Editor<'_>,
    unit: impl Fn(&str) -> String,
) -> BTreeMap<(usize, usize, Phase, String, Call), Vec<Place>> {
    let program = &editor.scenario.program;
    let mut groups: BTreeMap<_, Vec<Place>> = BTreeMap::new();
    for &(class, thread, index) in &editor.places {
        let action = &program.classes[class].threads[thread].actions[index];
        let tag = program.tag(action);
        let name = program.host_work(action).class.clone();
        let call: Call = match action.kind {
            ActionKind::Launch { stream, .. } => (Some(stream), None, name),
            ActionKind::Collective { stream, comm, .. } => (Some(stream), Some(comm), name),
            _ => (None, None, name),
        };
        groups
            .entry((class, thread, tag.phase, unit(&tag.unit), call))
            .or_default()
            .push((class, thread, index));
    }
    groups
}

/// Lets the action `stays` of `places` do the device work of all, and the others nothing.
fn collapse(editor: &mut Editor<'_>, places: &[Place], stays: usize) {
    let kinds: Vec<ActionKind> = places
        .iter()
        .map(|&(class, thread, index)| {
            editor.scenario.program.classes[class].threads[thread].actions[index].kind
        })
        .collect();
    for (number, &place) in places.iter().enumerate() {
        if number != stays {
            editor.change(place, |editor, action| editor.vanish(action));
        }
    }
    let prices = &editor.scenario.prices;
    match kinds[stays] {
        ActionKind::Launch { .. } => {
            let kernel_ns = |kind: &ActionKind| match kind {
                ActionKind::Launch { kernel, .. } => prices.kernel_ns[kernel.index()],
                _ => 0,
            };
            let total_ns = kinds.iter().map(kernel_ns).sum();
            editor.change(places[stays], |editor, action| {
                action.kind = editor.with_kernel(action.kind, total_ns);
            });
        }
        ActionKind::Collective { call, comm, .. } => {
            let first_ns = |kind: &ActionKind| match kind {
                ActionKind::Collective { call, comm, .. } => prices.collective_ns[call.index()]
                    [comm.index()]
                .first()
                .copied()
                .unwrap_or(0),
                _ => 0,
            };
            let (total_ns, own_ns) = (
                kinds.iter().map(first_ns).sum::<u64>(),
                prices.collective_ns[call.index()][comm.index()]
                    .first()
                    .copied()
                    .unwrap_or(0),
            );
            let more_ns = total_ns.saturating_sub(own_ns);
            editor.change(places[stays], |editor, action| {
                action.kind = editor.with_collective(action.kind, call, |ns| ns + more_ns);
            });
        }
        _ => {}
    }
}
