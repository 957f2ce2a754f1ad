//! Threads and streams of a step over time. A bar is as high as its lane is busy, so that a stream
//! that runs a 2 us kernel every 100 us looks as idle as it is.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Frame, LABEL, Scale, fill, line, put};
use super::{Figure, GRID, INK, NEUTRAL, PlotError, SERIES};
use crate::engine::{Iteration, Wait};
use crate::program::{ActionKind, Program, Tag};
use crate::units::{NS_PER_MS, Ns};

/// Height of a lane with its distance to the next.
const LANE: i32 = 44;
/// Width of the inside in pixels: one column each.
const COLUMNS: usize = 860;

/// What a bar shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Model,
    DataParallel,
    Optimizer,
    Other,
    Wait,
    Kernel,
    Collective,
}

const KINDS: [(Kind, &str, RGBColor); 7] = [
    (Kind::Model, "model", NEUTRAL),
    (Kind::DataParallel, "data parallel", SERIES[1]),
    (Kind::Optimizer, "optimizer", SERIES[4]),
    (Kind::Other, "other", SERIES[3]),
    (Kind::Wait, "waits for device", RGBColor(236, 208, 204)),
    (Kind::Kernel, "kernel", SERIES[0]),
    (Kind::Collective, "collective", SERIES[2]),
];

/// The timeline of rank 0 in one iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelinePlot {
    title: String,
    start_ns: Ns,
    step_ns: Ns,
    lanes: Vec<(String, Vec<[f32; KINDS.len()]>)>,
    phases: Vec<(String, Ns, Ns)>,
}

impl TimelinePlot {
    /// Lanes of rank 0: its threads, then the streams that run something.
    pub fn new(title: &str, program: &Program, iteration: &Iteration) -> Self {
        let mut plot = TimelinePlot {
            title: title.to_owned(),
            start_ns: iteration.start_ns,
            step_ns: iteration.step_ns().max(1),
            lanes: Vec::new(),
            phases: Vec::new(),
        };
        let Some(class) = program.rank_class.first() else {
            return plot;
        };
        let threads = &program.classes[*class as usize].threads;
        for thread in threads {
            plot.lane(format!("thread {}", thread.name));
        }
        // Streams of a pool, `grouped_gemm.0` and so on, share a lane.
        let mut lane_of = Vec::with_capacity(program.streams.len());
        for stream in &program.streams {
            let name = pool(&stream.name);
            let known = plot.lanes.iter().position(|(lane, _)| lane == name);
            lane_of.push(known.unwrap_or(plot.lanes.len()));
            if known.is_none() {
                plot.lane(name.to_owned());
            }
        }
        for span in iteration.host.iter().filter(|span| span.rank == 0) {
            let lane = span.thread as usize;
            let action = &threads[lane].actions[span.action as usize];
            let tag = program.tag(action);
            let kind = family(program.cause_name(tag.cause));
            plot.add(lane, kind, span.start_ns, span.work_end_ns);
            if matches!(span.wait, Wait::Device | Wait::LaunchQueue) {
                plot.add(lane, Kind::Wait, span.work_end_ns, span.end_ns);
            }
            if !matches!(action.kind, ActionKind::Await { .. }) {
                plot.phase(tag, span.start_ns, span.end_ns);
            }
        }
        for span in iteration.device.iter().filter(|span| span.rank == 0) {
            let kind = if span.collective {
                Kind::Collective
            } else {
                Kind::Kernel
            };
            plot.add(
                lane_of[span.stream as usize],
                kind,
                span.start_ns,
                span.end_ns,
            );
        }
        let busy = |columns: &Vec<[f32; KINDS.len()]>| columns.iter().flatten().any(|&b| b > 0.0);
        plot.lanes.retain(|(_, columns)| busy(columns));
        plot.phases.sort_by_key(|phase| phase.1);
        plot
    }

    fn lane(&mut self, name: String) {
        self.lanes.push((name, vec![[0.0; KINDS.len()]; COLUMNS]));
    }

    /// Adds a span's share to every column that it touches.
    fn add(&mut self, lane: usize, kind: Kind, start_ns: Ns, end_ns: Ns) {
        let kind = KINDS
            .iter()
            .position(|(known, ..)| *known == kind)
            .unwrap_or(0);
        let column =
            |ns: Ns| ns.saturating_sub(self.start_ns) as f64 / self.step_ns as f64 * COLUMNS as f64;
        let (from, to) = (column(start_ns), column(end_ns).min(COLUMNS as f64));
        for at in from as usize..(to.ceil() as usize).min(COLUMNS) {
            let share = (to.min(at as f64 + 1.0) - from.max(at as f64)).max(0.0);
            self.lanes[lane].1[at][kind] += share as f32;
        }
    }

    /// Extends the phase's band.
    fn phase(&mut self, tag: &Tag, start_ns: Ns, end_ns: Ns) {
        let name = match tag.phase {
            crate::program::Phase::Forward(microbatch) => format!("forward {microbatch}"),
            crate::program::Phase::Backward(microbatch) => format!("backward {microbatch}"),
            phase => phase.name().to_owned(),
        };
        match self.phases.iter_mut().find(|phase| phase.0 == name) {
            Some(phase) => {
                phase.1 = phase.1.min(start_ns);
                phase.2 = phase.2.max(end_ns);
            }
            None => self.phases.push((name, start_ns, end_ns)),
        }
    }
}

/// A stream's name without its number.
fn pool(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((pool, number)) if number.parse::<u32>().is_ok() => pool,
        _ => name,
    }
}

/// The family of a cause, by the part before its first dot.
fn family(cause: &str) -> Kind {
    match cause.split('.').next() {
        Some("model") => Kind::Model,
        Some("v1" | "v2" | "ddp" | "fsdp") => Kind::DataParallel,
        Some("optimizer") => Kind::Optimizer,
        _ => Kind::Other,
    }
}

impl Figure for TimelinePlot {
    fn size(&self) -> (u32, u32) {
        (1060, (190 + LANE * self.lanes.len() as i32) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        if self.lanes.is_empty() {
            return Err(PlotError::Empty("the timeline holds no spans".to_owned()));
        }
        let (_, height) = self.size();
        let frame = Frame {
            left: 170,
            right: 170 + COLUMNS as i32,
            top: 112,
            bottom: height as i32 - 66,
        };
        let range = (0.0, self.step_ns as f64 / NS_PER_MS);
        let scale = Scale::new(range, (frame.left, frame.right));
        frame.horizontal(area, &self.title, &scale, "time in the step (ms)")?;
        self.bands(area, &frame, &scale)?;
        for (index, (name, columns)) in self.lanes.iter().enumerate() {
            let base = frame.top + LANE * (index as i32 + 1) - 4;
            put(
                area,
                name,
                (frame.left - 10, base - LANE / 2 + 4),
                LABEL,
                (HPos::Right, VPos::Center),
            )?;
            line(area, vec![(frame.left, base), (frame.right, base)], GRID, 1)?;
            draw_lane(area, columns, frame.left, base)?;
        }
        let used = |kind: usize| {
            let mut columns = self.lanes.iter().flat_map(|(_, columns)| columns);
            columns.any(|column| column[kind] > 0.0)
        };
        let legend: Vec<(String, RGBColor)> = KINDS
            .iter()
            .enumerate()
            .filter(|(kind, _)| used(*kind))
            .map(|(_, (_, name, colour))| ((*name).to_owned(), *colour))
            .collect();
        frame.legend(area, "", &legend)
    }
}

impl TimelinePlot {
    /// Names of the phases over the lanes, with lines between them.
    fn bands<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        frame: &Frame,
        scale: &Scale,
    ) -> Result<(), PlotError> {
        let at = |ns: Ns| scale.at(ns.saturating_sub(self.start_ns) as f64 / NS_PER_MS);
        for (name, start_ns, end_ns) in &self.phases {
            let (from, to) = (at(*start_ns), at(*end_ns).min(frame.right));
            line(
                area,
                vec![(from, frame.top - 20), (from, frame.bottom)],
                INK,
                1,
            )?;
            // A name that does not fit over its phase is left out.
            if to - from > 8 * name.len() as i32 {
                let middle = (i32::midpoint(from, to), frame.top - 10);
                put(area, name, middle, LABEL - 1, (HPos::Center, VPos::Center))?;
            }
        }
        Ok(())
    }
}

/// Draws runs of equal columns as one box, the kinds stacked.
fn draw_lane<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    columns: &[[f32; KINDS.len()]],
    left: i32,
    base: i32,
) -> Result<(), PlotError> {
    let tall = f64::from(LANE - 12);
    let heights = |column: &[f32; KINDS.len()]| -> [i32; KINDS.len()] {
        let total = f64::from(column.iter().sum::<f32>()).max(1.0);
        let mut below = 0.0;
        std::array::from_fn(|kind| {
            below += f64::from(column[kind]) / total;
            // What is there is seen, if only as a line.
            let least = f64::from(column[kind] > 0.0);
            (below * tall).max(least).round() as i32
        })
    };
    let mut from = 0;
    while from < columns.len() {
        let shape = heights(&columns[from]);
        let run = columns[from..]
            .iter()
            .take_while(|c| heights(c) == shape)
            .count();
        let mut below = 0;
        for (kind, &top) in shape.iter().enumerate() {
            if top > below && columns[from][kind] > 0.0 {
                let corner = (left + from as i32, base - top);
                fill(
                    area,
                    corner,
                    (left + (from + run) as i32, base - below),
                    KINDS[kind].2,
                )?;
                below = top;
            }
        }
        from += run;
    }
    Ok(())
}
