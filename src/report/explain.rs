//! A step explained: parts, causes, phases, units, critical path, lane by lane.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::{
    Breakdown, Link, Part, PathStep, Scenario, Segment, Slack, Summary, critical_path, slack,
    summarise,
};
use crate::engine::{EngineError, Iteration};
use crate::program::{Program, TagId};
use crate::units::Ns;

use super::table::{Cell, Table, column};

/// A step with everything that is told about it.
#[derive(Debug, Clone)]
pub struct Explained {
    /// What is explained, such as `v2`.
    pub name: String,
    /// The Program.
    pub program: Program,
    /// Its step without jitter.
    pub iteration: Iteration,
    /// The step cut into segments.
    pub breakdown: Breakdown,
    /// Figures.
    pub summary: Summary,
    /// Critical path.
    pub path: Vec<PathStep>,
    /// Slack of all spans.
    pub slack: Slack,
}

/// Time by what the host did, for one cause, phase or unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Cause, phase or unit.
    pub name: String,
    /// All of it; the splits of one kind add up to the step.
    pub total_ns: Ns,
    /// Host work without launch calls.
    pub host_ns: Ns,
    /// Launch calls.
    pub launch_ns: Ns,
    /// The host waits.
    pub wait_ns: Ns,
    /// Time of it on the critical path.
    pub critical_ns: Ns,
}

/// Time on the critical path in one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lane {
    /// Thread or stream, with its rank if it is not rank 0.
    pub name: String,
    /// `host`, `kernel`, `collective` or `unknown`.
    pub kind: &'static str,
    /// Time on the path.
    pub critical_ns: Ns,
    /// Spans of the lane in the step.
    pub spans: usize,
    /// Least slack of a span of the lane.
    pub least_slack_ns: Ns,
    /// Median slack of the spans of the lane.
    pub median_slack_ns: Ns,
}

impl Explained {
    /// Runs a scenario without jitter and takes its step apart.
    ///
    /// # Errors
    /// [`EngineError`] if the Program does not run to its end.
    pub fn new(name: &str, scenario: &Scenario) -> Result<Self, EngineError> {
        let iteration = scenario.still()?;
        let program = scenario.program.clone();
        Ok(Explained {
            name: name.to_owned(),
            breakdown: Breakdown::new(&program, &iteration, 0),
            summary: summarise(&program, &iteration),
            path: critical_path(&program, &iteration),
            slack: slack(&program, &iteration),
            iteration,
            program,
        })
    }

    /// Time of every part, in their order.
    pub fn parts(&self) -> Vec<(Part, Ns)> {
        let parts = Part::ALL.iter();
        parts
            .map(|&part| (part, self.breakdown.part_ns(part)))
            .collect()
    }

    /// Time by cause, largest first.
    pub fn by_cause(&self) -> Vec<Split> {
        self.splits(|tag| {
            let cause = self.program.tags[tag.index()].cause;
            self.program.cause_name(cause).to_owned()
        })
    }

    /// Time by phase, largest first.
    pub fn by_phase(&self) -> Vec<Split> {
        self.splits(|tag| self.program.tags[tag.index()].phase.name().to_owned())
    }

    /// Time by layer or FSDP unit, largest first.
    pub fn by_unit(&self) -> Vec<Split> {
        self.splits(|tag| self.program.tags[tag.index()].unit.clone())
    }

    fn splits(&self, key: impl Fn(TagId) -> String) -> Vec<Split> {
        let mut splits: BTreeMap<String, [Ns; 4]> = BTreeMap::new();
        for segment in &self.breakdown.segments {
            let column = match segment.part {
                Part::Host => 0,
                Part::Launch => 1,
                _ => 2,
            };
            splits.entry(key(segment.tag)).or_default()[column] += segment.ns();
        }
        for step in &self.path {
            splits.entry(key(step.tag)).or_default()[3] += step.ns();
        }
        let split = |(name, ns): (String, [Ns; 4])| {
            let [host_ns, launch_ns, wait_ns, critical_ns] = ns;
            Split {
                name,
                total_ns: host_ns + launch_ns + wait_ns,
                host_ns,
                launch_ns,
                wait_ns,
                critical_ns,
            }
        };
        let mut splits: Vec<Split> = splits.into_iter().map(split).collect();
        splits.sort_by_key(|split| std::cmp::Reverse(split.total_ns));
        splits
    }

    /// Threads and streams with their time on the critical path and their slack.
    pub fn lanes(&self) -> Vec<Lane> {
        // By rank, whether on the device, and thread or stream: time on the path, whether collectives
        // run there, slack of the spans.
        type Spans = (Ns, bool, Vec<Ns>);
        let mut lanes: BTreeMap<(u32, bool, u32), Spans> = BTreeMap::new();
        let host = self.iteration.host.iter().zip(&self.slack.host_ns);
        for (span, &slack_ns) in host {
            if span.work_end_ns > span.start_ns {
                let lane = lanes.entry((span.rank, false, span.thread)).or_default();
                lane.2.push(slack_ns);
            }
        }
        let device = self.iteration.device.iter().zip(&self.slack.device_ns);
        for (span, &slack_ns) in device {
            let lane = lanes.entry((span.rank, true, span.stream)).or_default();
            lane.1 |= span.collective;
            lane.2.push(slack_ns);
        }
        for step in &self.path {
            let on_device = matches!(step.link, Link::Kernel | Link::Collective);
            if let Some(lane) = lanes.get_mut(&(step.rank, on_device, step.lane)) {
                lane.0 += step.ns();
            }
        }
        lanes
            .into_iter()
            .map(
                |((rank, on_device, lane), (critical_ns, collective, mut slack_ns))| {
                    slack_ns.sort_unstable();
                    Lane {
                        name: self.lane_name(rank, on_device, lane),
                        kind: match (on_device, collective) {
                            (false, _) => "host",
                            (true, false) => "kernels",
                            (true, true) => "collectives",
                        },
                        critical_ns,
                        spans: slack_ns.len(),
                        least_slack_ns: slack_ns.first().copied().unwrap_or(0),
                        median_slack_ns: slack_ns.get(slack_ns.len() / 2).copied().unwrap_or(0),
                    }
                },
            )
            .collect()
    }

    fn lane_name(&self, rank: u32, on_device: bool, lane: u32) -> String {
        let class = self
            .program
            .rank_class
            .get(rank as usize)
            .copied()
            .unwrap_or(0);
        let name = if on_device {
            format!("stream {}", self.program.streams[lane as usize].name)
        } else {
            let threads = &self.program.classes[class as usize].threads;
            format!("thread {}", threads[lane as usize].name)
        };
        match rank {
            0 => name,
            rank => format!("{name} of rank {rank}"),
        }
    }

    /// Share of the step in percent.
    pub fn share(&self, ns: Ns) -> f64 {
        100.0 * ns as f64 / self.breakdown.step_ns.max(1) as f64
    }

    /// The parts as a table with their sum.
    pub fn parts_table(&self) -> Table {
        let mut table = Table::new(&[
            column("part of the step", "part"),
            column("ms", "ns"),
            column("%", "percent"),
        ]);
        for (part, ns) in self.parts() {
            if ns > 0 || matches!(part, Part::Host | Part::Launch | Part::ExposedCommunication) {
                table.row([
                    Cell::text(part.name()),
                    Cell::Ns(ns),
                    Cell::Percent(self.share(ns)),
                ]);
            }
        }
        let step_ns = self.breakdown.step_ns;
        table.row([Cell::text("step"), Cell::Ns(step_ns), Cell::Percent(100.0)]);
        table
    }

    /// What the device does, beside the host's parts.
    pub fn device_table(&self) -> Table {
        let summary = &self.summary;
        let mut table = Table::new(&[
            column("device", "device"),
            column("ms", "ns"),
            column("%", "percent"),
        ]);
        for (name, ns) in [
            ("busy", summary.device_busy_ns),
            ("idle", summary.device_idle_ns()),
            ("communication, exposed", summary.exposed_communication_ns),
            ("communication, hidden", summary.hidden_communication_ns()),
        ] {
            table.row([
                Cell::text(name),
                Cell::Ns(ns),
                Cell::Percent(self.share(ns)),
            ]);
        }
        table
    }

    /// Splits as a table: the `shown` largest, the others together.
    pub fn splits_table(&self, heading: &'static str, splits: &[Split], shown: usize) -> Table {
        let mut table = Table::new(&[
            column(heading, "name"),
            column("ms", "total_ns"),
            column("%", "percent"),
            column("host", "host_ns"),
            column("launch", "launch_ns"),
            column("wait", "wait_ns"),
            column("critical", "critical_ns"),
        ]);
        let row = |split: &Split| {
            [
                Cell::text(split.name.clone()),
                Cell::Ns(split.total_ns),
                Cell::Percent(self.share(split.total_ns)),
                Cell::Ns(split.host_ns),
                Cell::Ns(split.launch_ns),
                Cell::Ns(split.wait_ns),
                Cell::Ns(split.critical_ns),
            ]
        };
        splits
            .iter()
            .take(shown)
            .for_each(|split| table.row(row(split)));
        let others = splits.get(shown..).unwrap_or_default();
        if !others.is_empty() {
            let sum = |field: fn(&Split) -> Ns| others.iter().map(field).sum();
            table.row(row(&Split {
                name: format!("{} others", others.len()),
                total_ns: sum(|split| split.total_ns),
                host_ns: sum(|split| split.host_ns),
                launch_ns: sum(|split| split.launch_ns),
                wait_ns: sum(|split| split.wait_ns),
                critical_ns: sum(|split| split.critical_ns),
            }));
        }
        table
    }

    /// Lanes as a table.
    pub fn lanes_table(&self) -> Table {
        let mut table = Table::new(&[
            column("critical path through", "lane"),
            column("ms on it", "critical_ns"),
            column("%", "percent"),
            column("spans", "spans"),
            column("least slack", "least_slack_ns"),
            column("median slack", "median_slack_ns"),
        ]);
        for lane in self.lanes() {
            table.row([
                Cell::text(format!("{} ({})", lane.name, lane.kind)),
                Cell::Ns(lane.critical_ns),
                Cell::Percent(self.share(lane.critical_ns)),
                Cell::Count(lane.spans as u64),
                Cell::Ns(lane.least_slack_ns),
                Cell::Ns(lane.median_slack_ns),
            ]);
        }
        table
    }

    /// One tidy table of everything, for programs.
    pub fn tidy_table(&self) -> Table {
        let mut table = Table::new(&[
            column("kind", "kind"),
            column("name", "name"),
            column("ms", "ns"),
        ]);
        let mut add = |kind: &str, name: &str, ns: Ns| {
            table.row([Cell::text(kind), Cell::text(name), Cell::Ns(ns)]);
        };
        add("step", &self.name, self.breakdown.step_ns);
        self.parts()
            .iter()
            .for_each(|(part, ns)| add("part", part.key(), *ns));
        add("device", "busy", self.summary.device_busy_ns);
        add("device", "idle", self.summary.device_idle_ns());
        add("device", "communication", self.summary.communication_ns);
        for (kind, splits) in [
            ("cause", self.by_cause()),
            ("phase", self.by_phase()),
            ("unit", self.by_unit()),
        ] {
            splits
                .iter()
                .for_each(|split| add(kind, &split.name, split.total_ns));
        }
        for lane in self.lanes() {
            add("critical", &lane.name, lane.critical_ns);
        }
        table
    }

    /// Everything, for JSON.
    pub fn document(&self) -> Document {
        let parts = self.parts().into_iter();
        Document {
            name: self.name.clone(),
            step_ns: self.breakdown.step_ns,
            parts_ns: parts.map(|(part, ns)| (part.key(), ns)).collect(),
            device_busy_ns: self.summary.device_busy_ns,
            device_idle_ns: self.summary.device_idle_ns(),
            exposed_communication_ns: self.summary.exposed_communication_ns,
            hidden_communication_ns: self.summary.hidden_communication_ns(),
            kernels: self.summary.kernels,
            collectives: self.summary.collectives,
            causes: self.by_cause(),
            phases: self.by_phase(),
            units: self.by_unit(),
            cells: self.cells(),
            critical_path: self.lanes(),
        }
    }

    /// Host time by phase, unit and cause together.
    fn cells(&self) -> Vec<CellDocument> {
        let key = |segment: &Segment| Some((segment.tag, segment.part));
        let cells = self.breakdown.by(key).into_iter();
        cells
            .map(|((tag, part), ns)| {
                let tag = &self.program.tags[tag.index()];
                CellDocument {
                    phase: tag.phase.name(),
                    unit: tag.unit.clone(),
                    cause: self.program.cause_name(tag.cause).to_owned(),
                    part: part.key(),
                    ns,
                }
            })
            .collect()
    }
}

/// A step explained, for JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    name: String,
    step_ns: Ns,
    parts_ns: BTreeMap<&'static str, Ns>,
    device_busy_ns: Ns,
    device_idle_ns: Ns,
    exposed_communication_ns: Ns,
    hidden_communication_ns: Ns,
    kernels: usize,
    collectives: usize,
    causes: Vec<Split>,
    phases: Vec<Split>,
    units: Vec<Split>,
    cells: Vec<CellDocument>,
    critical_path: Vec<Lane>,
}

/// Time of one phase, unit, cause and part.
#[derive(Debug, Clone, Serialize)]
struct CellDocument {
    phase: &'static str,
    unit: String,
    cause: String,
    part: &'static str,
    ns: Ns,
}
