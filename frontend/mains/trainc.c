/* trainc.c - the main of `trainc`: picks the command. */
#include "options.h"
#include "run.h"
#include "run_options.h"
#include "trainc.h"
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: trainc MODEL.onnx [-o DIR] [options]     compile a forward graph into a training-step "
    "library\n"
    "       trainc plan MODEL.onnx [options]         the same decisions, printed\n"
    "       trainc run DIR --data NAME=FILE ...      train: data in, log lines and checkpoints "
    "out\n"
    "       trainc eval MODEL.onnx --data NAME=FILE  the forward graph alone, once\n"
    "       trainc ops [NAME ...]                    the ONNX ops that it reads\n"
    "       trainc doctor                            what this machine can run, and why not more\n"
    "       trainc --version | --help | help COMMAND\n";

static int unknown_command(const char *word, const char *what) {
    static const char *const names[] = {"plan", "run", "eval", "ops", "doctor", "help"};
    const char *near = run_closest_name(word, names, sizeof names / sizeof *names);
    fprintf(stderr, "trainc: %s%s%s%s%s\n%s", what, word, near ? "; did you mean trainc " : "",
            near ? near : "", near ? "?" : "", usage);
    return 2;
}

static int help(const char *command) {
    if (!command)
        fputs(usage, stdout);
    else if (!strcmp(command, "compile"))
        options_help(COMMAND_COMPILE, stdout);
    else if (!strcmp(command, "plan"))
        options_help(COMMAND_PLAN, stdout);
    else if (!strcmp(command, "eval"))
        options_help(COMMAND_EVAL, stdout);
    else if (!strcmp(command, "run"))
        return trainc_run_main(2, (char *[]){"run", "--help", NULL});
    else if (!strcmp(command, "ops"))
        puts("usage: trainc ops [NAME ...]\nlists the ONNX ops that trainc reads: opsets, how many "
             "of "
             "ONNX's node tests agree,\ninputs whose gradient was confirmed by differences; of a "
             "NAME, all that is known");
    else if (!strcmp(command, "doctor"))
        puts("usage: trainc doctor\nsays what this machine can run, and why not more: compilers, "
             "devices, memory");
    else {
        return unknown_command(command, "no such command: ");
    }
    return 0;
}

static int compile_or_help(Command command, int argc, char **argv) {
    Options o = {.arena = arena_new()};
    int status = 2;
    if (options_parse(&o, command, argc, argv)) {
        status = 0;
        if (o.help && command == COMMAND_COMPILE) fputs(usage, stdout), fputc('\n', stdout);
        if (o.help)
            options_help(command, stdout);
        else if (command == COMMAND_COMPILE)
            status = command_compile(&o);
        else
            status = command == COMMAND_PLAN ? command_plan(&o) : command_eval(&o);
    }
    arena_free(o.arena);
    return status;
}

int main(int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : "";
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    if (!strcmp(first, "--version")) {
        printf("trainc %s\n", trainc_version());
        return 0;
    }
    if (!strcmp(first, "help")) return help(argc > 2 ? argv[2] : NULL);
    if (!strcmp(first, "run")) return trainc_run_main(argc - 1, argv + 1);
    if (!strcmp(first, "plan")) return compile_or_help(COMMAND_PLAN, argc - 1, argv + 1);
    if (!strcmp(first, "eval")) return compile_or_help(COMMAND_EVAL, argc - 1, argv + 1);
    if (!strcmp(first, "doctor")) return command_doctor();
    if (!strcmp(first, "ops") && argc > 2 && !strcmp(argv[2], "--help")) return help("ops");
    if (!strcmp(first, "ops")) return command_ops(argc - 2, argv + 2);
    if (first[0] != '-' && !strchr(first, '.') && !strchr(first, '/') && access(first, F_OK)) {
        return unknown_command(first, "neither a command nor a model: ");
    }
    return compile_or_help(COMMAND_COMPILE, argc, argv);
}
