/* The interface of libs3 2.0, for programs that are linked to libs3.so.2. */
#define LIBS3_API_2_0
#include "libs3.h"
