/* toy.h - a step library written by hand: y = w[ids[0]] + w[ids[1]] against labels, mean squared error, SGD with momentum. */
#ifndef TOY_H
#define TOY_H
#include "trainc.h"
enum { TOY_BATCH = 8, TOY_MICRO = 4, TOY_ROWS = 5 };
const trainc_program *toy_program(void);
#endif
