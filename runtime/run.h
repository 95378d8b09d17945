/* run.h - `trainc run`: data in, log lines and checkpoints out. */
#ifndef TRAINC_RUN_H
#define TRAINC_RUN_H
/* trainc_run_main - argv[0] is "run". Prints; returns the exit status of interface.md (130 after Ctrl-C). */
int trainc_run_main(int argc, char **argv);
#endif
