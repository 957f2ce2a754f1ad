//! Edits that move work to another lane: a stream, a communicator, a CUDA graph.

use std::collections::BTreeMap;

use crate::program::{
    Action, ActionKind, CommId, EventId, HostWorkId, Phase, Program, Stream, StreamId,
};

use super::edit::{EditError, Editor, Place, Selector};
use super::scenario::Scenario;

/// Moves the selected collectives to a new stream. Each still waits for what its old stream had
/// enqueued before it; the compute stream waits for the new one at the start of `join`.
pub(super) fn own_stream(
    scenario: &mut Scenario,
    selector: &Selector,
    join: Phase,
) -> Result<(), EditError> {
    let editor = Editor::new(scenario, selector)?;
    let places = editor.places;
    let program = &mut scenario.program;
    let new = StreamId(program.streams.len() as u32);
    program.streams.push(Stream {
        name: format!("own.{}", selector.cause),
    });
    for class in 0..program.classes.len() {
        for thread in 0..program.classes[class].threads.len() {
            let moved: Vec<usize> = places
                .iter()
                .filter(|place| (place.0, place.1) == (class, thread))
                .map(|place| place.2)
                .collect();
            move_collectives(program, class, thread, &moved, new);
        }
        join_at(program, class, join, new);
    }
    Ok(())
}

/// An event that nothing else uses.
fn new_event(program: &mut Program) -> EventId {
    program.event_count += 1;
    EventId(program.event_count - 1)
}

fn move_collectives(
    program: &mut Program,
    class: usize,
    thread: usize,
    moved: &[usize],
    new: StreamId,
) {
    // From the back, so that insertions leave the other indices as they are.
    for &index in moved.iter().rev() {
        let action = program.classes[class].threads[thread].actions[index];
        let ActionKind::Collective { comm, stream, call } = action.kind else {
            continue;
        };
        let event = new_event(program);
        let free = |kind| Action {
            kind,
            host: HostWorkId(0),
            tag: action.tag,
        };
        let collective = Action {
            kind: ActionKind::Collective {
                comm,
                stream: new,
                call,
            },
            ..action
        };
        let actions = &mut program.classes[class].threads[thread].actions;
        actions.splice(
            index..=index,
            [
                free(ActionKind::EventRecord { event, stream }),
                free(ActionKind::StreamWait { event, stream: new }),
                collective,
            ],
        );
    }
}

/// The compute stream waits for `new` before the first action of a phase on the main thread.
fn join_at(program: &mut Program, class: usize, join: Phase, new: StreamId) {
    let Some(main) = program.classes[class].threads.first() else {
        return;
    };
    let at = main
        .actions
        .iter()
        .position(|action| program.tag(action).phase.name() == join.name());
    let Some(index) = at.or_else(|| main.actions.len().checked_sub(1)) else {
        return;
    };
    let tag = main.actions[index].tag;
    let event = new_event(program);
    let free = |kind| Action {
        kind,
        host: HostWorkId(0),
        tag,
    };
    let wait = [
        free(ActionKind::EventRecord { event, stream: new }),
        free(ActionKind::StreamWait {
            event,
            stream: StreamId(0),
        }),
    ];
    program.classes[class].threads[0]
        .actions
        .splice(index..index, wait);
}

/// Gives the selected collectives copies of their communicators.
pub(super) fn own_communicator(
    scenario: &mut Scenario,
    selector: &Selector,
) -> Result<(), EditError> {
    let mut editor = Editor::new(scenario, selector)?;
    let mut copies: BTreeMap<CommId, CommId> = BTreeMap::new();
    editor.each(|editor, action| {
        let ActionKind::Collective { comm, stream, call } = action.kind else {
            return;
        };
        let scenario = &mut editor.scenario;
        let copy = *copies.entry(comm).or_insert_with(|| {
            let mut copy = scenario.program.communicators[comm.index()].clone();
            copy.name.push_str(".own");
            scenario.program.communicators.push(copy);
            for call in &mut scenario.prices.collective_ns {
                let same = call[comm.index()].clone();
                call.push(same);
            }
            CommId(scenario.program.communicators.len() as u32 - 1)
        });
        action.kind = ActionKind::Collective {
            comm: copy,
            stream,
            call,
        };
    });
    Ok(())
}

/// Replaces the host work of a phase by one launch, at the price of the phase's dearest single
/// launch. The device runs what it ran, in the same order.
pub(super) fn graph(scenario: &mut Scenario, phase: &str) -> Result<(), EditError> {
    let mut editor = Editor::new(scenario, &Selector::cause("*"))?;
    let program = &editor.scenario.program;
    let in_phase = |place: &Place| {
        let action = action(program, *place);
        phase == "step" || program.tag(action).phase.name() == phase
    };
    let places: Vec<Place> = editor.places.iter().copied().filter(in_phase).collect();
    for &place in &places {
        let action = action(program, place);
        if matches!(
            action.kind,
            ActionKind::HostWaitEvent { .. }
                | ActionKind::HostWaitStream { .. }
                | ActionKind::HostWaitDevice
        ) && program.tag(action).phase != Phase::Outside
        {
            let tag = program.tag(action);
            return Err(EditError::Capture {
                phase: phase.to_owned(),
                cause: program.cause_name(tag.cause).to_owned(),
                unit: tag.unit.clone(),
            });
        }
    }
    let launch =
        |place: &&Place| matches!(action(program, **place).kind, ActionKind::Launch { .. });
    let price = |place: &Place| editor.scenario.prices.host[action(program, *place).host.index()];
    let dearest = places
        .iter()
        .filter(launch)
        .max_by(|a, b| price(a).centre_ns.total_cmp(&price(b).centre_ns))
        .map(price);
    // A phase without launches has nothing to replay: its host work is gone all the same.
    let once = dearest.map(|price| editor.new_host("launch/graph", price));
    for (number, place) in places.into_iter().enumerate() {
        editor.change(place, |editor, action| {
            action.host = match once.filter(|_| number == 0) {
                Some(once) => once,
                None => editor.scaled_host(action.host, 0.0),
            };
        });
    }
    Ok(())
}

fn action(program: &Program, (class, thread, index): Place) -> &Action {
    &program.classes[class].threads[thread].actions[index]
}
