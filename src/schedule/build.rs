//! Builds the Program of a spec.

use thiserror::Error;

use crate::model::{Axis, Mesh};
use crate::program::{Program, ProgramBuilder, ProgramError};
use crate::spec::{Fsdp, Spec};

use super::ddp::Ddp;
use super::from_spec;
use super::plan::Plan;
use super::step::write_step;
use super::v1::V1;
use super::v2::V2;
use super::writer::{Comms, Writer};

/// A schedule that could not be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// A broken invariant of the built Program: a fault of the builder.
    #[error("the schedule built an impossible program: {0}")]
    Program(#[from] ProgramError),
}

/// Builds one training step of `spec` under `fsdp`. All ranks run the program of rank 0, which has
/// the most non-empty shards.
///
/// # Errors
/// A broken invariant of the built Program.
pub fn build(spec: &Spec, fsdp: Fsdp) -> Result<Program, ScheduleError> {
    let mut spec = spec.clone();
    spec.set_fsdp(fsdp);
    build_plan(&spec, &from_spec::plan(&spec, 0), fsdp)
}

fn build_plan(spec: &Spec, plan: &Plan, fsdp: Fsdp) -> Result<Program, ScheduleError> {
    let mut program = ProgramBuilder::new();
    let comms = communicators(&mut program, spec, plan);
    let mut writer = Writer::new(program, comms);
    match fsdp {
        Fsdp::Ddp => write_step(&mut writer, plan, &mut Ddp),
        Fsdp::V1 => {
            let mut v1 = V1::new(plan, &mut writer.program);
            write_step(&mut writer, plan, &mut v1);
        }
        Fsdp::V2 => write_step(&mut writer, plan, &mut V2::new(plan)),
    }
    let Writer {
        mut program,
        threads,
        ..
    } = writer;
    let threads = threads.into_iter().map(|thread| thread.thread).collect();
    let class = program.rank_class(threads);
    program.ranks(vec![class; plan.mesh.world as usize]);
    Ok(program.finish()?)
}

fn communicators(program: &mut ProgramBuilder, spec: &Spec, plan: &Plan) -> Comms {
    let mesh = Mesh::new(spec);
    let mut comm = |axis: Axis| program.communicator(axis.name(), mesh.groups(axis));
    let inner = comm(Axis::Inner);
    Comms {
        inner,
        outer: comm(Axis::Outer),
        expert_inner: comm(Axis::ExpertInner),
        expert_outer: comm(Axis::ExpertOuter),
        expert_data: comm(Axis::ExpertData),
        expert_parallel: comm(Axis::ExpertParallel),
        world: comm(Axis::World),
        inner_gather: if plan.separate_gather_group {
            program.communicator("dp.inner.gather", mesh.groups(Axis::Inner))
        } else {
            inner
        },
    }
}
