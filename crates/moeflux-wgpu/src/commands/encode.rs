//! Encodes recorded commands into wgpu command buffers and submits them.

use wgpu::{Buffer, CommandBuffer, CommandEncoder, ComputePass, PollType, SubmissionIndex};

use crate::commands::command::Command;
use crate::device::context::Context;

pub(crate) fn encode(context: &Context, commands: &[Command]) -> CommandBuffer {
    let mut encoder = context.device.create_command_encoder(&Default::default());
    let mut rest = commands;
    while !rest.is_empty() {
        let n_kernels =
            rest.iter().take_while(|command| matches!(command, Command::Run { .. })).count();
        let (kernels, others) = rest.split_at(n_kernels);
        if n_kernels > 0 {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            kernels.iter().for_each(|kernel| run(&mut pass, kernel));
        }
        let n_others =
            others.iter().take_while(|command| !matches!(command, Command::Run { .. })).count();
        let (others, behind) = others.split_at(n_others);
        others.iter().for_each(|command| put(&mut encoder, command));
        rest = behind;
    }
    encoder.finish()
}

fn run(pass: &mut ComputePass<'_>, command: &Command) {
    if let Command::Run { pipeline, group, params, grid: [x, y, z] } = command {
        pass.set_pipeline(pipeline.compiled());
        pass.set_bind_group(0, group, &[*params]);
        pass.dispatch_workgroups(*x, *y, *z);
    }
}

fn put(encoder: &mut CommandEncoder, command: &Command) {
    match command {
        Command::Run { .. } => {}
        Command::Copy { from, to, bytes } => {
            encoder.copy_buffer_to_buffer(&from.0, from.1, &to.0, to.1, Some(*bytes));
        }
        Command::Clear(buffer, at, bytes) => encoder.clear_buffer(buffer, *at, Some(*bytes)),
        Command::Stamp(set, nth) => encoder.write_timestamp(set, *nth),
        Command::Resolve(set, n, buffer) => encoder.resolve_query_set(set, 0..*n, buffer, 0),
    }
}

/// Has lists and parameters written before what is submitted next.
pub(crate) fn write_arena(context: &Context, arena: &Buffer, bytes: &[u8]) {
    if !bytes.is_empty() {
        context.queue.write_buffer(arena, 0, bytes);
    }
}

pub(crate) fn submit(
    context: &Context,
    commands: impl IntoIterator<Item = CommandBuffer>,
) -> SubmissionIndex {
    #[cfg(test)]
    let commands = commands.into_iter().take(if context.takes_left_out() { 0 } else { usize::MAX });
    let index = context.queue.submit(commands);
    // Frees what finished submissions held; what went wrong is asked for at read-backs.
    let _ = context.device.poll(PollType::Poll);
    index
}
