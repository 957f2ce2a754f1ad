//! Builds the Program of a spec.

use thiserror::Error;

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
    build_plan(&from_spec::plan(&spec), fsdp)
}

/// Builds one training step of a plan.
///
/// # Errors
/// A broken invariant of the built Program.
pub fn build_plan(plan: &Plan, fsdp: Fsdp) -> Result<Program, ScheduleError> {
    let mut program = ProgramBuilder::new();
    let comms = communicators(&mut program, plan);
    let mut writer = Writer::new(program, comms);
    match fsdp {
        Fsdp::Ddp => write_step(&mut writer, plan, &mut Ddp),
        Fsdp::V1 => write_step(&mut writer, plan, &mut V1::new(plan)),
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

/// Groups of `size` ranks that lie `stride` apart.
fn groups(world: u64, size: u64, stride: u64) -> Vec<Vec<u32>> {
    let block = size * stride;
    (0..world / block)
        .flat_map(|block_index| {
            (0..stride).map(move |first| {
                (0..size)
                    .map(|k| (block_index * block + first + k * stride) as u32)
                    .collect()
            })
        })
        .collect()
}

fn communicators(program: &mut ProgramBuilder, plan: &Plan) -> Comms {
    let mesh = &plan.mesh;
    let world = mesh.world;
    // Experts parallel over neighbours; data parallel over the rest, inner groups first.
    let expert_stride = mesh.expert_parallel;
    let inner = program.communicator("dp.inner", groups(world, mesh.inner, 1));
    let inner_gather = if plan.separate_gather_group {
        program.communicator("dp.inner.gather", groups(world, mesh.inner, 1))
    } else {
        inner
    };
    Comms {
        inner,
        inner_gather,
        outer: program.communicator("dp.outer", groups(world, mesh.outer, mesh.inner)),
        expert_inner: program.communicator(
            "expert_dp.inner",
            groups(world, mesh.expert_inner, expert_stride),
        ),
        expert_outer: program.communicator(
            "expert_dp.outer",
            groups(world, mesh.expert_outer, expert_stride * mesh.expert_inner),
        ),
        expert_parallel: program.communicator("ep", groups(world, mesh.expert_parallel, 1)),
        world: program.communicator("world", groups(world, world, 1)),
    }
}
